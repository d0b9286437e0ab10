"""The command reproduce."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import (
    Assignments,
    Compile,
    DataFolder,
    Device,
    Devices,
    DryRun,
    Engine,
    ExecutorName,
    Minutes,
    Precision,
    Shard,
    TableAsJson,
    numbers,
    words,
)
from fedhead.cli.output import print_table, raise_failures, resumable
from fedhead.core.system.errors import BadInput, require

if TYPE_CHECKING:
    from fedhead.papers.tables.table_result import TableResult


@command("Papers")
def reproduce(
    table: Annotated[
        str | None, Argument("Table of a paper. Without one, the tables are listed.", label="PAPER/TABLE")
    ] = None,
    assignments: Assignments = None,
    cells: Annotated[str, Option("Run only cells whose name contains one of these comma-separated texts.")] = "",
    seeds: Annotated[
        str | None, Option("Number of seeds (3), from the paper's first, or the seeds (7,8,9). [default: the paper's]")
    ] = None,
    splits: Annotated[
        str | None, Option("Number of partitions (3), or their seeds (0,1,2). [default: the table's]")
    ] = None,
    variants: Annotated[str, Option("Comma-separated variants of the table to run instead.")] = "",
    scale: Annotated[Literal["full", "small"], Option("Size: as in the paper, or a few minutes on a CPU.")] = "full",
    results: Annotated[
        Path | None, Option("Folder of results.csv, to which each result is added; results in it are not repeated.")
    ] = None,
    minutes: Minutes = None,
    out: Annotated[Path | None, Option("Output folder. [default: runs/PAPER/TABLE]")] = None,
    data_dir: DataFolder = None,
    device: Device = "auto",
    devices: Devices = None,
    shard: Shard = None,
    engine: Engine = "local",
    executor: ExecutorName = "auto",
    precision: Precision = "fp32",
    compile: Compile = "auto",
    dry_run: DryRun = False,
    summary: Annotated[
        bool, Option("Write README.md and the figure of the --results folder, and run nothing.")
    ] = False,
    as_json: TableAsJson = False,
) -> None:
    """Run a table of a paper, and compare it with the published values.

    --dry-run lists the names of the cells. --cells "cifar10-0.1 fedavg" selects cells whose names contain both words.
    The same command continues an interrupted table and skips finished runs.

    With --results each result is appended to FOLDER/results.csv immediately, and results in that file are not measured
    again. Another machine needs only this file to continue.

    Examples:
      fedhead reproduce
      fedhead reproduce ccvr/table2 --scale small
      fedhead reproduce ccvr/table2 --cells "cifar10-0.1 fedavg,cifar10-0.1 moon" --seeds 2 --splits 3
      fedhead reproduce ccvr/table2 --results results --minutes 9 --precision bf16
      fedhead reproduce ccvr/table2 --variants tukey-none --results results
      fedhead reproduce ccvr/table2 stage.ccvr.power=0.7 --cells "cifar10-0.1 fedavg"
      fedhead reproduce --summary --results results
    """
    from fedhead.papers.tables import paper_tables as tables

    of_runs = [assignments, cells, seeds, splits, variants, minutes, out, devices, shard, dry_run, as_json]
    with_options = any([*of_runs, scale != "full"])
    if summary:
        from fedhead.papers.tables.results_page import write

        require(
            table is None and not with_options,
            "--summary writes the page of all results and runs nothing: give it --results alone",
        )
        if results is None:
            raise BadInput("--summary needs the folder of results: give it with --results")
        print(f"written: {write(results)}")
        return
    if table is None:
        require(not with_options and results is None, "name a table: `fedhead reproduce` alone lists them")
        print("\n".join(f"{name:<24}{tables.load(name).title}" for name in tables.names()))
        return
    how_many, partitions = numbers("--seeds", seeds), numbers("--splits", splits)
    paper_table = tables.load(table)
    for option, text in (("--cells", cells), ("--variants", variants)):
        fix = "there is no text between the commas; leave the option out for all cells"
        require(not text or words(text), f"{option} {text!r}: {fix}")  # an empty selection would run all cells
    from fedhead.engine.experiment.compute import Compute
    from fedhead.papers.tables.reproduce import plan
    from fedhead.papers.tables.reproduce import reproduce as run_table
    from fedhead.papers.tables.table_result import json_text
    from fedhead.recipes.recipe import assignment
    from fedhead.studies.devices import engine_for
    from fedhead.studies.queue import read_shard

    part = None if shard is None else read_shard(shard)
    runner = engine_for(engine, devices, device)
    require(not (dry_run and as_json), "--json prints results, which --dry-run does not have: leave one out")
    options: dict[str, Any] = {
        "scale": scale,
        "pick": words(cells),
        "seeds": how_many,
        "splits": partitions,
        "overrides": dict(assignment(text) for text in assignments or ()),
        "variants": words(variants),
        "compute": Compute(data_dir, device, executor, precision, compile=compile),
    }
    if dry_run:
        listed, _ = plan(paper_table, **options)
        print("\n".join(" ".join([cell.name, *cell.overrides]) for cell in listed))
        return
    folder = out or Path("runs") / (table if scale == "full" else f"{table}-small")
    with resumable():
        result = run_table(
            paper_table,
            folder,
            results=results,
            minutes=minutes,
            shard=part,
            engine=runner,
            log=partial(print, file=sys.stderr, flush=True),
            **options,
        )
    if as_json:
        print(json_text(result), end="")
    else:
        _print_table(result, folder)
    raise_failures(result.failures)


def _print_table(result: TableResult, folder: Path) -> None:
    from fedhead.papers.tables.table_result import plus_minus
    from fedhead.report.table import Table

    changed = any(cell.overrides for cell in result.cells)
    head = [*result.axes, *(["changed"] if changed else []), "metric", "ours", "published", "difference"]
    body = [
        [
            *(cell.choices[axis] for axis in result.axes),
            *([" ".join(cell.overrides)] if changed else []),
            cell.metric,
            plus_minus(cell.mean, cell.deviation),
            plus_minus(cell.published, cell.published_deviation),
            "–" if cell.difference is None else f"{cell.difference:+.2f}",
        ]
        for cell in result.cells
    ]
    print_table(Table(result.title, head, body), left=len(head) - 3)
    print(result.note())
    print(f"written to {folder / result.file}.csv and .json")
