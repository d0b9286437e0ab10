"""Learning curves: one panel per setting, one line per method with a band over seeds, stages at the end."""

from __future__ import annotations

from fedhead.metrics.records import Row
from fedhead.report.histories import aligned
from fedhead.report.metric_names import METRICS, in_order, metric_label
from fedhead.report.page.charts import HEIGHT, POINTS, Chart, axis, lines, mark, round_axis, text
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, chart, choice, identifier, legend, panels


def section(content: Content) -> Section | None:
    """Return the curves of all recorded metrics, with a selector."""
    order = in_order(name for run in content.runs for row in run.rows for name in _numbers(row))
    if not order:
        return None
    figures = []
    for number, column in enumerate(content.columns):
        charts = {name: panel for name in order if (panel := _panel(content, column, name)) is not None}
        if charts:
            title = column if len(content.columns) > 1 else ""
            label = f"Learning curves, {column}"
            figures.append(chart(identifier("curve", number), "curves", charts, label, title))
    shown = {name: metric_label(name) for name in order}
    stages = _stages(content)
    remark = (
        f"<p>Line: mean over seeds; band: one standard deviation{stages}. Thin lines: runs that did not finish.</p>"
    )
    body = choice("curves", "Metric", shown) + legend("curves", content.styles) + remark + panels(figures)
    return Section("curves", "Learning curves", body)


def _stages(content: Content) -> str:
    return f"; marks at the end: after {', '.join(map(text, content.symbols))}" if content.symbols else ""


def _panel(content: Content, column: str, metric: str) -> Chart | None:
    data = []
    last = 0
    for entry in content.of(column):
        look = content.styles[entry.method]
        if entry.stage:
            heights = [value for record in entry.records() if (value := _numbers(record).get(metric)) is not None]
            # place marks side by side, since marks of equal height would hide each other
            place = 1 + 0.015 * (1 + list(content.styles).index(entry.method))
            x = place * max(len(run.rows) for run in entry.runs)
            data += [mark(entry.label, x, heights, look, content.symbols[entry.stage], entry.method)] if heights else []
            continue
        last = max([last, *(len(run.rows) for run in (*entry.runs, *entry.unfinished))])
        rounds, values = aligned([run.rows for run in entry.runs], metric, POINTS)
        if len(rounds):
            spread = values.std(axis=0, ddof=1).tolist() if len(values) > 1 else None
            data += lines(entry.method, rounds.tolist(), values.mean(axis=0).tolist(), spread, look)
        for run in entry.unfinished:
            rounds, values = aligned([run.rows], metric, POINTS)
            name = f"{entry.method}, seed {run.recipe.seed}, {run.status}"
            if len(rounds):
                data += lines(name, rounds.tolist(), values[0].tolist(), None, look, thin=True, key=entry.method)
    if not data:
        return None
    return Chart(data, {"xaxis": round_axis(last), "yaxis": axis(metric_label(metric)), "height": HEIGHT})


def _numbers(row: Row) -> dict[str, float]:
    """Return the metrics of a round or a stage."""
    numbers = {name: row[name] for name in METRICS if row.get(name) is not None}
    return numbers | {name: value for name, value in (row.get("metrics") or {}).items() if value is not None}
