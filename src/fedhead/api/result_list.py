"""Several runs at once: their table, and their comparison seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedhead.api.comparison import Comparison, paired
from fedhead.api.result import Result
from fedhead.core import html
from fedhead.core.errors import BadInput

if TYPE_CHECKING:
    import pandas as pd


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
        """Compare with other runs, seed by seed; only finished runs count.

        Args:
            other: Runs with the same seeds.
            metric: "accuracy", "personal" or a metric of the runs.
            level: Level of the interval of the mean difference.

        Returns:
            The differences, these minus the others.

        Raises:
            BadInput: If a seed is there twice on one side, or none on both.
        """
        sides = [_by_seed(side, metric) for side in (self, other)]
        return paired(metric, "seed", sides[0], sides[1], level)

    def _repr_html_(self) -> str:
        table = self.table
        return html.table(f"{len(self)} runs", list(table.columns), table.to_numpy().tolist())


def _by_seed(results: Sequence[Result], metric: str) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for result in results:
        if not result.finished:
            continue
        seed = str(result.recipe.seed)
        if seed in found:
            raise BadInput(f"compare: seed {seed} is there twice, in {result.path} too: give runs of one setting")
        own = {"accuracy": result.accuracy, "personal": result.personal}
        found[seed] = own[metric] if metric in own else result.metrics.get(metric)
    return found
