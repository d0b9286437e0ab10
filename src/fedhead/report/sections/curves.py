"""Learning curves: one panel per setting, one line per method with a band over seeds, stages at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.engine.metrics import Row
from fedhead.report.charts import HEIGHT, SYMBOLS, Chart, Style, axis, lines, text
from fedhead.report.content import METRICS, Content, Entry, in_order, worded
from fedhead.report.markup import Section, chart, choice, identifier, legend, panels
from fedhead.report.runs import Run

POINTS = 250  # that one curve has at most


def section(content: Content) -> Section | None:
    """Return the curves of every metric that rounds recorded, of which the reader chooses."""
    history = {id(run): {row["round"]: _numbers(row) for row in run.rows} for run in content.runs}
    order = in_order(name for rounds in history.values() for found in rounds.values() for name in found)
    if not order:
        return None
    figures = []
    for number, column in enumerate(content.columns):
        charts = {name: found for name in order if (found := _panel(content, column, name, history)) is not None}
        if charts:
            title = column if len(content.columns) > 1 else ""
            label = f"Learning curves, {column}"
            figures.append(chart(identifier("curve", number), "curves", charts, label, title))
    shown = {name: worded(name) for name in order}
    stages = _stages(content)
    remark = (
        f"<p>Line: mean over seeds; band: one standard deviation{stages}. Thin lines: runs that did not finish.</p>"
    )
    body = choice("curves", "Metric", shown) + legend("curves", content.styles) + remark + panels(figures)
    return Section("curves", "Learning curves", body)


def _stages(content: Content) -> str:
    found = dict.fromkeys(stage for run in content.runs for stage in run.recipe.stages)
    return f"; marks at the end: after {', '.join(map(text, found))}" if found else ""


def _panel(content: Content, column: str, metric: str, history: dict[int, dict[int, dict[str, float]]]) -> Chart | None:
    data = []
    stages = list(dict.fromkeys(stage for run in content.runs for stage in run.recipe.stages))
    for entry in content.of(column):
        look = content.styles[entry.method]
        if entry.stage:
            number = list(content.styles).index(entry.method)
            data += _mark(entry, metric, look, SYMBOLS[stages.index(entry.stage) % len(SYMBOLS)], number)
            continue
        rounds, values = _aligned([history[id(run)] for run in entry.runs], metric)
        if len(rounds):
            spread = values.std(axis=0, ddof=1).tolist() if len(values) > 1 else None
            data += lines(entry.method, rounds.tolist(), values.mean(axis=0).tolist(), spread, look)
        for run in entry.unfinished:
            rounds, values = _aligned([history[id(run)]], metric)
            name = f"{entry.method}, seed {run.recipe.seed}, {_why(run)}"
            if len(rounds):
                data += lines(name, rounds.tolist(), values[0].tolist(), None, look, thin=True, key=entry.method)
    if not data:
        return None
    return Chart(data, {"xaxis": axis("round"), "yaxis": axis(worded(metric)), "height": HEIGHT})


def _mark(entry: Entry, metric: str, look: Style, symbol: str, number: int) -> list[dict[str, Any]]:
    """Return the mark of a stage at the end of its method's curve."""
    found = [value for record in entry.records() if (value := _numbers(record).get(metric)) is not None]
    if not found:
        return []
    deviation = float(np.std(found, ddof=1)) if len(found) > 1 else 0.0
    last = max(len(run.rows) for run in entry.runs)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [last * (1 + 0.015 * (number + 1))],  # side by side: marks of equal height hide each other
            "y": [float(np.mean(found))],
            "error_y": {"array": [deviation], "thickness": 1},
            "marker": {"color": look.color, "size": 10, "symbol": symbol, "line": {"width": 1, "color": "#888"}},
            "name": text(entry.label),
            "legendgroup": entry.method,
            "cliponaxis": False,
            "hovertemplate": "%{y:.4~f}<extra>%{fullData.name}</extra>",
        }
    ]


def _numbers(row: Row) -> dict[str, float]:
    """Return what a round or a stage measured."""
    found = {name: row[name] for name in METRICS if row.get(name) is not None}
    return found | {name: value for name, value in (row.get("metrics") or {}).items() if value is not None}


def _why(run: Run) -> str:
    return run.state.partition(" ")[0].strip(",")


def _aligned(
    histories: list[dict[int, dict[str, float]]], metric: str
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rounds in which every run has the metric, and its values [runs, rounds]; long ones are thinned."""
    found = [{r: values[metric] for r, values in rounds.items() if metric in values} for rounds in histories]
    found = [one for one in found if one]
    common = sorted(set.intersection(*(set(one) for one in found))) if found else []
    if len(common) > POINTS:
        common = [common[i] for i in np.unique(np.linspace(0, len(common) - 1, POINTS).round().astype(int))]
    return np.array(common, dtype=np.int64), np.array([[one[r] for r in common] for one in found], dtype=np.float64)
