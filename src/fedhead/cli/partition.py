"""The command partition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import DataFolder
from fedhead.cli.output import print_table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fedhead.report.table import Table

WIDEST = 26  # maximum number of classes in a table


@command("Look into")
def partition(
    dataset: Annotated[str, Argument("Name of a data set, see `fedhead ls datasets`.")],
    partition: Annotated[str, Argument("Partition, see `fedhead ls partitions`.")],
    clients: Annotated[int, Option("Number of clients.")] = 10,
    seed: Annotated[int, Option("Seed of the partition.")] = 0,
    plot: Annotated[Path | None, Option("Output file of a bubble chart: .png, .svg or .pdf.")] = None,
    data_dir: DataFolder = None,
    as_json: Annotated[bool, Option("Print one line of JSON.", flag="--json")] = False,
) -> None:
    """Show how a partition distributes the classes of a data set over clients.

    Examples:
      fedhead partition digits 'dirichlet(0.1)' --clients 10 --seed 0
      fedhead partition digits 'skewed(2)' --clients 20 --plot split.png
    """
    from fedhead.recipes import recipe_data
    from fedhead.recipes.recipe import Recipe

    federation = recipe_data.federation(
        Recipe(dataset=dataset, partition=partition, clients=clients, seed=seed), data_dir
    )
    counts = federation.counts()
    if plot is not None:
        from fedhead.report.figures import plots

        plots.save(plots.bubbles(counts, federation.class_names, f"{dataset}, {partition}, seed {seed}"), plot)
    if as_json:
        print(
            json.dumps(
                {"counts": counts.tolist(), "class_names": federation.class_names and list(federation.class_names)}
            )
        )
        return
    print_table(_table(counts))
    if plot is not None:
        print(f"picture: {plot}")


def _table(counts: NDArray[np.int64]) -> Table:
    """Return the samples by client and class; with many classes, only their number and the largest one's samples."""
    from fedhead.report.table import Table

    wide = counts.shape[1] > WIDEST
    columns = ["classes held", "largest class"] if wide else [str(c) for c in range(counts.shape[1])]
    body = []
    for client, row in enumerate(counts):
        cells = [int((row > 0).sum()), int(row.max())] if wide else row.tolist()
        body.append([str(client), *(str(cell) if cell else "·" for cell in cells), str(int(row.sum()))])
    totals = ["", ""] if wide else [str(int(c)) for c in counts.sum(axis=0)]
    return Table("", ["client", *columns, "samples"], [*body, ["all", *totals, str(int(counts.sum()))]])
