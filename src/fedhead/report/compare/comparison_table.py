"""Comparison of methods: a table of means by setting, paired gains over a baseline, and ranks over the settings.

Differences are paired over the same seed and split and have a confidence interval. With one pair there is no interval,
and a note says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fedhead.core.system.errors import BadInput, require, unknown
from fedhead.report.compare import statistics
from fedhead.report.compare.measured import Measured, Replicate, independent
from fedhead.report.compare.pivot import Arrangement, Cell, Pivot, flat_recipe, pivot

_FEWEST = ("loss", "seconds", "bytes")  # a metric whose name contains one of these is minimized


@dataclass(frozen=True)
class Gain:
    """Paired differences of a method from the baseline in one setting.

    Args:
        row: Index of the method.
        column: Index of the setting.
        paired: Differences, method minus baseline, averaged over the seeds of each split first; None without common
            seeds and splits.
        over: Number and kind of the paired values, such as "3 splits" or "5 seeds".
        p_t: p-value of the paired t-test after Holm's correction over all gains of the table.
        p_wilcoxon: p-value of Wilcoxon's signed-rank test, also corrected.
    """

    row: int
    column: int
    paired: statistics.Paired | None
    over: str
    p_t: float | None = None
    p_wilcoxon: float | None = None


@dataclass(frozen=True)
class ComparisonTable:
    """Comparison of methods over settings.

    Args:
        metric: Metric.
        better: Direction of the metric.
        level: Confidence level of the intervals.
        pivot: Table of the values by method and setting.
        baseline: Index of the baseline's row; None for a single row.
        gains: Differences of all other rows from the baseline.
        ranking: Ranks over the settings of all methods; None for fewer than two.
        notes: Notes about excluded runs and missing pairs.
    """

    metric: str
    better: Literal["max", "min"]
    level: float
    pivot: Pivot
    baseline: int | None
    gains: tuple[Gain, ...]
    ranking: statistics.Ranking | None
    notes: tuple[str, ...]

    def best(self, column: int) -> int | None:
        """Return the best row of a column; None if its interval overlaps another one, or a cell has a single value."""
        means = {i: cell.mean for (i, j), cell in self.pivot.cells.items() if j == column}
        spans = {i: self.pivot.cells[i, column].interval(self.level) for i in means}
        best = (max if self.better == "max" else min)(means, key=means.__getitem__)
        others = [span for i, span in spans.items() if i != best]
        mine = spans[best]
        if not others or mine is None:
            return None
        clear = [span is not None and (span[1] < mine[0] or mine[1] < span[0]) for span in others]
        return best if all(clear) else None

    def number(self, value: float, sign: bool = False) -> str:
        """Format a value of the metric: two decimals for large values, four significant digits for small ones."""
        largest = max((abs(cell.mean) for cell in self.pivot.cells.values()), default=0.0)
        digits = 2 if largest >= 2 else 4
        return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"

    def cell(self, row: int, column: int) -> str:
        """Format a cell: mean ± deviation, and the number of values if it varies between cells; – if empty."""
        cell = self.pivot.cells.get((row, column))
        if cell is None:
            return "–"
        deviation = "" if cell.deviation is None else f" ± {self.number(cell.deviation)}"
        count = "" if self.count is not None else f" (n={len(cell.values)})"
        return self.number(cell.mean) + deviation + count

    @property
    def count(self) -> int | None:
        """Number of values per cell; None if it varies."""
        counts = {len(cell.values) for cell in self.pivot.cells.values()}
        return counts.pop() if len(counts) == 1 else None


def compare(
    measured: Sequence[Measured],
    metric: str | None = None,
    baseline: str | None = None,
    by: Sequence[str] = (),
    level: float = 0.95,
    notes: Sequence[str] = (),
    arrangement: Arrangement | None = None,
    gains: bool = True,
    labels: Mapping[str, str] | None = None,
) -> ComparisonTable:
    """Compare the measurements of finished runs.

    Args:
        measured: Measurements.
        metric: Metric; None: the accuracy, or the first available one.
        baseline: Label of a row or name of a method; None: fedavg, or the first row.
        by: Recipe keys of the columns; empty: all keys that vary.
        level: Confidence level of the intervals.
        notes: Further notes.
        arrangement: Row and column keys; None: those of the measured recipes.
        gains: Whether to compute gains and ranks, which is the slowest part.
        labels: Labels of methods, stages or rows, see `Arrangement.of`.

    Raises:
        BadInput: If there is nothing to compare, no run has the metric, no row matches the baseline, or a label matches
            nothing.
    """
    require(measured, "compare: none of the runs is finished, and only finished runs count")
    known = dict.fromkeys(name for m in measured for name in m.values)
    if metric is None:
        tested = (name for name in ("accuracy", "personal", "test_loss", "personal_loss") if name in known)
        metric = next(tested, "")
        require(metric, "compare: these runs have no test samples: give the federation some, such as test=0.2")
    if metric not in known:
        raise unknown("metric of these runs", metric, known)
    if arrangement is None:
        arrangement = Arrangement.of([flat_recipe(m.recipe, m.left_out) for m in measured], by, labels)
        arrangement.check_labels((m.recipe, m.stage) for m in measured)
    table = pivot(measured, metric, arrangement)
    reference = _baseline(table, baseline)
    differences, unpaired = _gains(table, reference, level) if gains and reference is not None else ((), [])
    better, assumed = _better(metric, measured)
    ranking, ranked = _ranking(table, better) if gains else (None, [])
    lines = [*notes, *table.notes, *assumed, *unpaired, *ranked]
    if all(len(cell.values) == 1 for cell in table.cells.values()):
        lines.append("every value is of a single run: there is no interval, and a difference may be chance; add seeds")
    return ComparisonTable(metric, better, level, table, reference, differences, ranking, tuple(dict.fromkeys(lines)))


def _better(metric: str, measured: Sequence[Measured]) -> tuple[Literal["max", "min"], list[str]]:
    from fedhead.metrics import registry  # imports torch

    if any(part in metric for part in _FEWEST):
        return "min", []
    if metric in ("accuracy", "accuracy_mean", "personal", "personal_weighted"):
        return "max", []
    name = metric.removeprefix("personal_")
    recipe = next(m.recipe for m in measured if metric in m.values)
    try:
        goal = registry.find([name], recipe.folders, recipe.objective or "multiclass")[name].better
    except BadInput:  # not in the registry: a Python function, or a removed metric
        goal = None
    return goal or "max", [] if goal else [f"nobody said which values of {metric} are good: high ones are taken"]


def _baseline(table: Pivot, name: str | None) -> int | None:
    """Return the index of the baseline's row, by label or by method."""
    if name is None:
        if len(table.rows) < 2:
            return None
        return table.methods.index("fedavg") if "fedavg" in table.methods else 0
    if name in table.rows:
        return table.rows.index(name)
    if name in table.methods:
        same = [i for i, method in enumerate(table.methods) if method == name]
        if len(same) == 1:
            return same[0]
        raise BadInput(f"baseline {name}: which of {', '.join(table.rows[i] for i in same)}?")
    raise unknown("baseline", name, table.rows)


def _gains(table: Pivot, baseline: int, level: float) -> tuple[tuple[Gain, ...], list[str]]:
    gains: list[Gain] = []
    notes: list[str] = []
    for (row, column), cell in sorted(table.cells.items(), key=lambda item: item[0][::-1]):
        if row == baseline:
            continue
        where = f"{table.rows[row]}, {table.headings()[column]}"
        ours, theirs = cell.values, table.cells.get((baseline, column), Cell({})).values
        differences = {key: value - theirs[key] for key, value in ours.items() if key in theirs}
        paired = statistics.paired(independent(differences), level) if differences else None
        gains.append(Gain(row, column, paired, over=_replicates(differences)))
        sides = (table.rows[row], table.rows[baseline])
        for mine, others, (has, lacks) in ((ours, theirs, sides), (theirs, ours, sides[::-1])):
            if runs := ", ".join(str(key) for key in mine if key not in others):
                notes.append(f"{where}: {lacks} has no run with {runs}, so that of {has} is not in the difference")
    corrected = [
        statistics.holm([None if gain.paired is None else getattr(gain.paired, name) for gain in gains])
        for name in ("p_t", "p_wilcoxon")
    ]
    complete = [replace(gain, p_t=t, p_wilcoxon=wilcoxon) for gain, t, wilcoxon in zip(gains, *corrected, strict=True)]
    return tuple(complete), notes


def _replicates(differences: Mapping[Replicate, float]) -> str:
    """Describe the values behind an interval: several splits, or the seeds of one split."""
    splits = len({replicate.split for replicate in differences})
    if splits < 2:
        return f"{len(differences)} seed{'' if len(differences) == 1 else 's'}"
    seeds = len(differences) / splits
    return f"{splits} splits" + ("" if seeds == 1 else f" × {seeds:g} seeds")


def _ranking(table: Pivot, better: Literal["max", "min"]) -> tuple[statistics.Ranking | None, list[str]]:
    """Rank the methods over the columns in which all have values."""
    if len(table.rows) < 2 or len(table.columns) < 2:
        return None, []
    rows = range(len(table.rows))
    whole = [j for j in range(len(table.columns)) if all((i, j) in table.cells for i in rows)]
    left_out = [heading for j, heading in enumerate(table.headings()) if j not in whole]
    notes = [f"not ranked, as not all methods have values there: {'; '.join(left_out)}"] if left_out else []
    if len(whole) < 2:
        return None, notes
    if (
        "dataset" not in table.keys
        or max(Counter(table.columns[j][table.keys.index("dataset")] for j in whole).values()) > 1
    ):
        notes.append(
            "ranks are over settings that share a data set: the tests take them for independent, which is generous"
        )
    return statistics.rank(table.rows, [[table.cells[i, j].mean for i in rows] for j in whole], better), notes
