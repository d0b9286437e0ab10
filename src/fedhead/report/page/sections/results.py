"""The results: methods by settings, mean and deviation over seeds, the best of each setting in bold; and gains."""

from __future__ import annotations

from fedhead.report.compare.comparison_table import ComparisonTable
from fedhead.report.metric_names import metric_label
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Cell, Section, blocks, choice, table

BASELINES = 8  # among which a reader chooses


def section(content: Content) -> Section | None:
    """Return one table per metric, of which the reader chooses."""
    if not content.metrics:
        return None
    contents = {m: _pivot(content, m, f"results-{i}") for i, m in enumerate(content.metrics)}
    body = choice("results", "Metric", content.metrics) + blocks("results", contents)
    return Section("results", "Results", body + _settings(content))


def _pivot(content: Content, metric: str, id: str) -> str:
    found = content.compared(metric, gains=False)
    notes = {
        (entry.label, entry.column): f"{len(entry.unfinished)} not finished" if entry.unfinished else ""
        for entry in content.entries
    }
    rows = list(dict.fromkeys(entry.label for entry in content.entries))
    places = {heading: j for j, heading in enumerate(found.pivot.headings())}
    best = {heading: {found.pivot.rows[i] for i in found.best(j)} for heading, j in places.items()}
    body: list[list[Cell | str]] = []
    for row in rows:
        line: list[Cell | str] = [Cell(row)]
        for column in content.columns:
            remark = notes.get((row, column), "")
            cell = None
            if row in found.pivot.rows and column in places:
                where = found.pivot.rows.index(row), places[column]
                cell = found.pivot.cells.get(where)
            if cell is None:
                line.append(Cell("–", note=remark))
            else:
                line.append(Cell(found.cell(*where), cell.mean, row in best[column], remark))
        body.append(line)
    count = "" if found.count is None else f"; n = {found.count} in every cell"
    order = "lowest" if found.better == "min" else "highest"
    caption = (
        f"{metric_label(metric)}, mean ± standard deviation over the seeds that finished{count}; bold: the {order} of "
        "its column, with all ties"
    )
    return table(id, ["method", *content.columns], body, caption)


def _settings(content: Content) -> str:
    """Return what else differs between methods and settings, where their labels don't say it."""
    keys = content.arrangement.unshown
    if not keys:
        return ""
    body: list[list[Cell | str]] = []
    for entry in content.methods:
        recipe = (entry.runs or entry.unfinished)[0].recipe.flat()
        body.append([entry.method, entry.column, *(str(recipe.get(key, "")) for key in keys)])
    return table("settings", ["method", "setting", *keys], body, "What differs too", range(1, len(keys) + 2))


def gains_section(content: Content) -> Section | None:
    """Return the gains over a baseline that the reader chooses, by the accuracy or by what there is in its place."""
    metric = next(iter(content.metrics), None)
    if metric is None:
        return None
    first = content.compared(metric, gains=False)
    if first.baseline is None:
        return None
    baselines = list(dict.fromkeys([first.pivot.rows[first.baseline], *first.pivot.rows]))[:BASELINES]
    contents = {f"b{i}": _gains(content.compared(metric, name), f"gains-{i}") for i, name in enumerate(baselines)}
    names = {f"b{i}": name for i, name in enumerate(baselines)}
    return Section("gains", "Gains", choice("gains", "Compared with", names) + blocks("gains", contents))


def _gains(found: ComparisonTable, id: str) -> str:
    assert found.baseline is not None, "it was named"
    by_place = {(gain.row, gain.column): gain for gain in found.gains}
    body: list[list[Cell | str]] = []
    for i, row in enumerate(found.pivot.rows):
        if i == found.baseline:
            continue
        line: list[Cell | str] = [Cell(row)]
        for j in range(len(found.pivot.columns)):
            gain = by_place.get((i, j))
            if gain is None or gain.paired is None:
                line.append("–")
                continue
            paired = gain.paired
            note, sure = paired.why_no_interval, False
            if paired.interval is not None:
                low, high = paired.interval
                sure = low > 0 or high < 0
                note = f"{found.number(low, sign=True)} … {found.number(high, sign=True)}, n = {paired.count}"
                note += "" if gain.p_t is None else f", p = {gain.p_t:.2g}"
            line.append(Cell(found.number(paired.mean, sign=True), paired.mean, sure, note))
        body.append(line)
    caption = (
        f"{metric_label(found.metric)} minus that of {found.pivot.rows[found.baseline]}: mean of the differences of "
        f"the same seed and split, its {found.level:.0%} interval, and p of the paired t-test, which alone is "
        "corrected by Holm over this table; bold: the interval leaves out 0"
    )
    return table(id, ["method", *found.pivot.headings()], body, caption)
