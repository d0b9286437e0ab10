"""Formatting of comparisons: tables for terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

from typing import Any

from fedhead.core.system.spreadsheet import without_formulas
from fedhead.report.compare.comparison_table import ComparisonTable, Gain
from fedhead.report.compare.pivot import text
from fedhead.report.compare.statistics import Ranking
from fedhead.report.metric_names import metric_label
from fedhead.report.table import Cell, Table


def tables(comparison: ComparisonTable) -> list[Table]:
    """Return the formatted tables: values, and paired gains and ranks if available."""
    out = [values_table(comparison)]
    if comparison.gains:
        out.append(gains_table(comparison))
    if comparison.ranking is not None:
        out.append(_ranks_table(comparison.ranking))
    return out


def values_table(comparison: ComparisonTable) -> Table:
    """Return the means by method and setting, the best of each column highlighted (`ComparisonTable.best`)."""
    pivot, count = comparison.pivot, comparison.count
    over = "" if count is None else f", mean ± deviation of {count} runs" if count > 1 else ", single runs"
    best = [comparison.best(j) for j in range(len(pivot.columns))]
    body: list[list[Cell | str]] = []
    for i, row in enumerate(pivot.rows):
        cells = [pivot.cells.get((i, j)) for j in range(len(pivot.columns))]
        values = [None if cell is None else cell.mean for cell in cells]
        texts = [Cell(comparison.cell(i, j), value, i == best[j]) for j, value in enumerate(values)]
        body.append([row, *texts])
    label, headings = metric_label(comparison.metric), pivot.headings()
    if len(headings) > 1:
        by = f" by {', '.join(pivot.keys[k] for k in pivot.varying)}{pivot.common and f', all with {pivot.common}'}"
    else:
        by, headings = f", {headings[0]}", [label]
    title = f"{label}{by}{over}{'' if comparison.better == 'max' else ', low is good'}"
    return Table(title, ["method", *headings], body)


def gains_table(comparison: ComparisonTable) -> Table:
    """Return the paired differences from the baseline with their intervals and tests."""
    assert comparison.baseline is not None, "gains are differences from it"
    pivot, headings = comparison.pivot, comparison.pivot.headings()
    head = ["method", "over", "difference", f"{100 * comparison.level:g} % interval", "p (t)", "p (Wilcoxon)"]
    if several := len(pivot.columns) > 1:
        head.insert(1, "setting")
    body: list[list[Cell | str]] = []
    for gain in comparison.gains:
        start: list[Cell | str] = [pivot.rows[gain.row], *([headings[gain.column]] if several else [])]
        if gain.paired is None:
            body.append([*start, "no pair", *["–"] * 4])
            continue
        ends = [comparison.number(end, sign=True) for end in gain.paired.interval or ()]
        difference = Cell(comparison.number(gain.paired.mean, sign=True), gain.paired.mean)
        interval = " … ".join(ends) or gain.paired.why_no_interval
        body.append([*start, gain.over, difference, interval, p_value(gain.p_t), p_value(gain.p_wilcoxon)])
    title = (
        f"Difference from {pivot.rows[comparison.baseline]}, paired by seed and split, averaged within each split; "
        f"p-values corrected by Holm{', intervals not' if len(comparison.gains) > 1 else ''}"
    )
    return Table(title, head, body)


def _ranks_table(ranking: Ranking) -> Table:
    test = "" if ranking.p_friedman is None else f", Friedman p = {p_value(ranking.p_friedman)}"
    title = f"Mean rank over {len(ranking.ranks)} settings{test}; critical difference {ranking.critical_difference:.2f}"
    order = sorted(zip(ranking.mean_ranks, ranking.names, strict=True), key=lambda pair: pair[0])
    body = [
        [name, f"{rank:.2f}", "yes" if rank - order[0][0] >= ranking.critical_difference else "no"]
        for rank, name in order
    ]
    return Table(title, ["method", "mean rank", "worse than the best"], body)


def p_value(p: float | None) -> str:
    """Format a p-value.

    >>> p_value(0.0312), p_value(0.0000004), p_value(None)
    ('0.031', '<0.001', '–')
    """
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def markdown(comparison: ComparisonTable) -> str:
    """Format the comparison as Markdown."""
    notes = [f"- {' '.join(note.split())}" for note in comparison.notes]
    return "\n".join([*(table.markdown() for table in tables(comparison)), *notes, *([""] if notes else [])])


def latex(comparison: ComparisonTable) -> str:
    """Format the comparison as LaTeX tables with booktabs."""
    parts = [table.latex() for table in tables(comparison)]
    head = ["% \\usepackage{booktabs,textcomp}", *(f"% {' '.join(note.split())}" for note in comparison.notes)]
    return "\n".join([*head, *parts])


def records(comparison: ComparisonTable) -> list[dict[str, Any]]:
    """Return one record per method and setting: values, gain and rank."""
    pivot = comparison.pivot
    gains = {(gain.row, gain.column): gain for gain in comparison.gains}
    ranks = (
        {}
        if comparison.ranking is None
        else dict(zip(comparison.ranking.names, comparison.ranking.mean_ranks, strict=True))
    )
    out = []
    for (i, j), cell in sorted(pivot.cells.items()):
        low, high = cell.interval(comparison.level) or (None, None)
        results = {
            "metric": comparison.metric,
            "runs": len(cell.values),
            "mean": cell.mean,
            "deviation": cell.deviation,
            "low": low,
            "high": high,
            "best": i == comparison.best(j),
            "baseline": None if comparison.baseline is None else pivot.rows[comparison.baseline],
            **_gain_record(gains.get((i, j))),
            "mean_rank": ranks.get(pivot.rows[i]),
        }
        settings = {key: text(value) for key, value in zip(pivot.keys, pivot.columns[j], strict=True)}
        out.append({"method": pivot.rows[i], **settings, **results})
    return out


def _gain_record(gain: Gain | None) -> dict[str, Any]:
    paired = None if gain is None else gain.paired
    low, high = (paired and paired.interval) or (None, None)
    return {
        "pairs": paired and paired.count,
        "difference": paired and paired.mean,
        "difference_low": low,
        "difference_high": high,
        "p_t": paired and paired.p_t,
        "p_t_holm": gain and gain.p_t,
        "p_wilcoxon": paired and paired.p_wilcoxon,
        "p_wilcoxon_holm": gain and gain.p_wilcoxon,
    }


def csv_text(comparison: ComparisonTable) -> str:
    """Format the records as CSV."""
    import pandas as pd

    return str(without_formulas(pd.DataFrame(records(comparison))).to_csv(index=False))


FORMATS = {".md": markdown, ".csv": csv_text, ".tex": latex}  # by the suffix of a file
