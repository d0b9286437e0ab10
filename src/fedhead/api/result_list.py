"""Several runs at once: their table, and their comparison seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedhead.api.comparison import Comparison, paired
from fedhead.api.result import Result
from fedhead.core.system import html
from fedhead.core.system.errors import BadInput
from fedhead.report.compare.measured import Replicate

if TYPE_CHECKING:
    import pandas as pd

    from fedhead.report.page.inline import Report


class Results(list[Result]):
    """Several runs, as `fedhead.load_all` returns them."""

    @property
    def table(self) -> pd.DataFrame:
        """One line per run: where it is, the settings that differ, how far it came, and its accuracies."""
        import pandas as pd

        flat = [result.recipe.flat() for result in self]
        keys = list(dict.fromkeys(key for one in flat for key in one))
        differ = [key for key in keys if any(one.get(key) != flat[0].get(key) for one in flat)]
        lines = [
            {
                "run": str(result.path),
                **{key: one.get(key) for key in differ},
                "state": result.record.state,
                "accuracy": result.accuracy,
                "personal": result.personal,
                **{f"accuracy_{name}": row.get("accuracy") for name, row in result.stage_rows.items()},
            }
            for result, one in zip(self, flat, strict=True)
        ]
        return pd.DataFrame(lines)

    def compare(self, other: Sequence[Result], metric: str = "accuracy", level: float = 0.95) -> Comparison:
        """Compare with other runs, seed by seed and on the same splits; only finished runs count.

        Several methods and settings at once are compared by `fedhead.compare`.

        Args:
            other: Runs with the same seeds and splits.
            metric: "accuracy", "personal" or a metric of the runs.
            level: Level of the interval of the mean difference.

        Returns:
            The differences, these minus the others.

        Raises:
            BadInput: If a seed and split is there twice on one side, or none on both.
        """
        sides = [_by_replicate(side, metric) for side in (self, other)]
        seeds = [replicate.seed for replicate in sides[0]]
        once = len(set(seeds)) == len(seeds)
        named = [{str(r.seed) if once and r in sides[0] else str(r): v for r, v in side.items()} for side in sides]
        return paired(metric, "seed", named[0], named[1], level)

    def show(self) -> Report:
        """Return the report's page about these runs, which notebooks show inline.

        Returns:
            The page; `save` writes it to a file.
        """
        from fedhead.report.page.inline import Report

        return Report([result.record for result in self])

    def _repr_html_(self) -> str:
        table = self.table
        return html.table(f"{len(self)} runs", list(table.columns), table.to_numpy().tolist())


def _by_replicate(results: Sequence[Result], metric: str) -> dict[Replicate, float | None]:
    found: dict[Replicate, float | None] = {}
    for result in results:
        if not result.finished:
            continue
        replicate = Replicate(result.recipe.seed, result.record.split)
        if replicate in found:
            raise BadInput(f"compare: {replicate} is there twice, in {result.path} too: give runs of one setting")
        own = {"accuracy": result.accuracy, "personal": result.personal}
        found[replicate] = own[metric] if metric in own else result.metrics.get(metric)
    return found
