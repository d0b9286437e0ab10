"""Results: methods by settings, mean and deviation over seeds, and gains over a baseline."""

from __future__ import annotations

from fedhead.report.compare.comparison_text import gains_table, values_table
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, blocks, choice, table

BASELINES = 8  # maximum number of baselines in the selector


def section(content: Content) -> Section | None:
    """Return one table per metric, with a selector."""
    if not content.metrics:
        return None
    tables = {m: values_table(content.compared(m, gains=False)) for m in content.metrics}
    contents = {m: table(f"results-{i}", shown) for i, (m, shown) in enumerate(tables.items())}
    body = choice("results", "Metric", content.metrics) + blocks("results", contents)
    remark = "<p>Bold: the best of a column, if its 95 % interval overlaps no other. Single runs have no interval.</p>"
    return Section("results", "Results", body + remark)


def gains_section(content: Content) -> Section | None:
    """Return the gains over a selectable baseline, in the first available metric."""
    metric = next(iter(content.metrics), None)
    if metric is None:
        return None
    first = content.compared(metric, gains=False)
    if first.baseline is None:
        return None
    baselines = list(dict.fromkeys([first.pivot.rows[first.baseline], *first.pivot.rows]))[:BASELINES]
    names = {f"b{i}": name for i, name in enumerate(baselines)}
    contents = {
        key: table(f"gains-{i}", gains_table(content.compared(metric, name)), wordy=["setting"])
        for i, (key, name) in enumerate(names.items())
    }
    return Section("gains", "Gains", choice("gains", "Compared with", names) + blocks("gains", contents))
