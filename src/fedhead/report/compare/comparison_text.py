"""Comparisons as texts: tables for people (terminal, Markdown, LaTeX) and for programs (CSV, JSON)."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from fedhead.report.compare.comparison_table import ComparisonTable, Gain
from fedhead.report.compare.pivot import text
from fedhead.report.compare.statistics import Ranking
from fedhead.report.metric_names import metric_label
from fedhead.report.text_table import TextTable, beyond_latin

SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}


def tables(found: ComparisonTable) -> list[TextTable]:
    """Return the tables that people read: the values, the paired gains and the ranks, where there are such."""
    out = [_values(found)]
    if found.gains:
        out.append(_gains(found))
    if found.ranking is not None:
        out.append(_ranks(found.ranking))
    return out


def _values(found: ComparisonTable) -> TextTable:
    pivot, counted = found.pivot, found.count
    over = "" if counted is None else f", mean ± deviation of {counted} runs" if counted > 1 else ", single runs"
    body = [[row, *(found.cell(i, j) for j in range(len(pivot.columns)))] for i, row in enumerate(pivot.rows)]
    bold = frozenset((i, j + 1) for j in range(len(pivot.columns)) for i in found.best(j))
    by = f" by {', '.join(pivot.keys)}" if len(pivot.columns) > 1 else ""
    title = f"{metric_label(found.metric)}{by}{over}{'' if found.better == 'max' else ', low is good'}"
    return TextTable(title, ["method", *pivot.headings()], body, bold)


def _gains(found: ComparisonTable) -> TextTable:
    assert found.baseline is not None
    pivot, headings = found.pivot, found.pivot.headings()
    percent = f"{100 * found.level:g} %"
    head = ["method", "pairs", "difference", f"{percent} interval", "p (t)", "p (Wilcoxon)"]
    if several := len(pivot.columns) > 1:
        head.insert(1, "setting")
    body = []
    for gain in found.gains:
        setting = [headings[gain.column]] if several else []
        if gain.paired is None:
            body.append([pivot.rows[gain.row], *setting, "0", *["–"] * 4])
            continue
        ends = gain.paired.interval
        shown = [found.number(end, sign=True) for end in ends or ()]
        between = " … ".join(shown) or gain.paired.why_no_interval
        body.append(
            [
                pivot.rows[gain.row],
                *setting,
                str(gain.paired.count),
                found.number(gain.paired.mean, sign=True),
                between,
                p_value(gain.p_t),
                p_value(gain.p_wilcoxon),
            ]
        )
    baseline = pivot.rows[found.baseline]
    title = f"Difference from {baseline}, paired over the same seed and split; p-values corrected by Holm"
    if len(found.gains) > 1:
        title += ", intervals not"
    return TextTable(title, head, body)


def _ranks(ranking: Ranking) -> TextTable:
    order = sorted(range(len(ranking.names)), key=lambda i: ranking.mean_ranks[i])
    sets = len(ranking.ranks)
    tests = [
        "" if p is None else f", {name} p = {p_value(p)}"
        for name, p in (("Friedman", ranking.p_friedman), ("Iman-Davenport", ranking.p_iman_davenport))
    ]
    title = f"Mean rank over {sets} settings{''.join(tests)}; critical difference {ranking.critical_difference:.2f}"
    best = ranking.mean_ranks[order[0]]
    body = [
        [
            ranking.names[i],
            f"{ranking.mean_ranks[i]:.2f}",
            "yes" if ranking.mean_ranks[i] - best >= ranking.critical_difference else "no",
        ]
        for i in order
    ]
    return TextTable(title, ["method", "mean rank", "worse than the best"], body)


def p_value(p: float | None) -> str:
    """Format a p-value.

    >>> p_value(0.0312), p_value(0.0000004), p_value(None)
    ('0.031', '<0.001', '–')
    """
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def markdown(found: ComparisonTable) -> str:
    """Return the comparison as Markdown."""
    notes = [f"- {' '.join(note.split())}" for note in found.notes]
    return "\n".join([*(table.markdown() for table in tables(found)), *notes, *([""] if notes else [])])


def latex(found: ComparisonTable) -> str:
    """Return the comparison as LaTeX tables with booktabs."""
    parts = [table.latex() for table in tables(found)]
    head = ["% \\usepackage{booktabs,textcomp}"]
    if any(beyond_latin(part) for part in parts):
        head.append("% some letters are not Latin: compile with lualatex or xelatex and a font that has them")
    head += [f"% {' '.join(note.split())}" for note in found.notes]
    return "\n".join([*head, *parts])


def records(found: ComparisonTable) -> list[dict[str, Any]]:
    """Return one record per method and setting: values, gain and rank."""
    pivot = found.pivot
    gains = {(gain.row, gain.column): gain for gain in found.gains}
    ranks = {} if found.ranking is None else dict(zip(found.ranking.names, found.ranking.mean_ranks, strict=True))
    out = []
    for (i, j), cell in sorted(pivot.cells.items()):
        low, high = cell.interval(found.level) or (None, None)
        results = {
            "metric": found.metric,
            "runs": len(cell.values),
            "mean": cell.mean,
            "deviation": cell.deviation,
            "low": low,
            "high": high,
            "best": i in found.best(j),
            "baseline": None if found.baseline is None else pivot.rows[found.baseline],
            **_gain_record(gains.get((i, j))),
            "mean_rank": ranks.get(pivot.rows[i]),
        }
        named = zip(pivot.keys, pivot.columns[j], strict=True)
        # an axis of a sweep may be called as one of the results
        settings = {f"axis {key}" if key in results else key: text(value) for key, value in named}
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


def csv_text(found: ComparisonTable) -> str:
    """Return the records as CSV."""
    lines = records(found)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def json_text(found: ComparisonTable) -> str:
    """Return the whole comparison as JSON, with every single value and the ranks by setting."""
    pivot, ranking = found.pivot, found.ranking
    values = [
        {"method": pivot.rows[i], "setting": pivot.headings()[j], "seed": r.seed, "split": r.split, "value": value}
        for (i, j), cell in sorted(pivot.cells.items())
        for r, value in cell.values.items()
    ]
    ranks = None if ranking is None else {**vars(ranking), "ranks": ranking.ranks.tolist()}
    entries = {
        "metric": found.metric,
        "better": found.better,
        "level": found.level,
        "baseline": None if found.baseline is None else pivot.rows[found.baseline],
        "results": records(found),
        "values": values,
        "ranking": ranks,
        "notes": found.notes,
    }
    return json.dumps(entries, indent=1) + "\n"


FORMATS = {"markdown": markdown, "csv": csv_text, "latex": latex, "json": json_text}
