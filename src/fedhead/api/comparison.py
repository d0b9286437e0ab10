"""Paired comparison of two sides: differences per client or per seed, with an interval of their mean and a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import Above, Below
from fedhead.core.system import html
from fedhead.core.system.errors import require
from fedhead.report.compare import statistics

if TYPE_CHECKING:
    import pandas as pd

Level = Annotated[float, Above(0), Below(1)]


@dataclass(frozen=True)
class Comparison:
    """Differences, first minus second, of what both have.

    Args:
        what: What is compared, such as "accuracy".
        by: What the pairs are: "client" or "seed".
        first: Values by pair.
        second: Likewise.
        level: Level of the interval.
    """

    what: str
    by: str
    first: Mapping[str, float]
    second: Mapping[str, float]
    level: float = 0.95

    @property
    def pairs(self) -> pd.DataFrame:
        """One line per pair: both values and their difference."""
        import pandas as pd

        frame = pd.DataFrame({"first": dict(self.first), "second": dict(self.second)})
        frame["difference"] = frame["first"] - frame["second"]
        frame.index.name = self.by
        return frame

    @property
    def mean(self) -> float:
        """The mean of the differences."""
        return float(np.mean(self._differences()))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the mean by Student's t of the paired differences; None for fewer than two pairs."""
        return statistics.interval(self._differences(), self.level)

    @property
    def p_value(self) -> float | None:
        """The p-value of the paired t-test, two-sided; None for fewer than two pairs, or where all differ equally."""
        return statistics.paired(self._differences(), self.level).p_t

    def _differences(self) -> list[float]:
        return [self.first[name] - self.second[name] for name in self.first]

    def __repr__(self) -> str:
        """Say the mean difference, its interval and over how many pairs."""
        between = self.interval
        interval = "" if between is None else f", {self.level:.0%} interval {between[0]:+.2f} … {between[1]:+.2f}"
        plural = "" if len(self.first) == 1 else "s"
        return f"Comparison({self.what}: {self.mean:+.2f}{interval}, {len(self.first)} {self.by}{plural})"

    def _repr_html_(self) -> str:
        body = [[n, f"{a:.2f}", f"{self.second[n]:.2f}", f"{a - self.second[n]:+.2f}"] for n, a in self.first.items()]
        return html.table(repr(self), [self.by, "first", "second", "difference"], body)


def paired(
    what: str, by: str, first: Mapping[str, float | None], second: Mapping[str, float | None], level: float
) -> Comparison:
    """Compare what both have a value of.

    Raises:
        BadInput: If that is nothing.
    """
    found = statistics.match(first, second)
    require(found.keys, f"compare: the two have no {by} in common of which both know {what}")
    level = check("level", level, Level)
    a, b = (dict(zip(found.keys, values, strict=True)) for values in (found.first, found.second))
    return Comparison(what, by, a, b, level)
