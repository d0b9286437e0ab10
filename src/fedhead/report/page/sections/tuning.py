"""Searches: the best value so far, the value by each key, and the best settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput
from fedhead.report.compare.study_trials import Trials, is_logarithmic, read_study
from fedhead.report.page.charts import HEIGHT, Chart, axis, distinct, text
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, chart, choice, identifier, notes, panels, table
from fedhead.report.style import COLORS
from fedhead.report.table import Cell, Table


def section(content: Content) -> Section | None:
    """Return the figures of each study, of which the reader chooses one, and a table of what was found."""
    studies: dict[str, Trials] = {}
    remarks = []
    for folder in content.studies:
        try:
            studies[str(folder)] = read_study(folder)
        except BadInput as error:
            remarks.append(str(error))
    if not studies:
        return Section("tuning", "Tuning", notes(remarks)) if remarks else None
    figures = [
        _figure("best", {name: _best_so_far(one) for name, one in studies.items()}, "Best value so far"),
    ]
    for number in range(max(len(one.keys) for one in studies.values())):
        slices = {name: _slice(one, one.keys[number]) for name, one in studies.items() if number < len(one.keys)}
        keys = {one.keys[number] for one in studies.values() if number < len(one.keys)}
        title = f"Value by {keys.pop()}" if len(keys) == 1 else "Value by key"
        figures.append(_figure(f"slice-{number}", slices, title))
    remark = (
        "<p>Points: trials that were trained to their end, on validation samples. Keys that span more than a factor of "
        "20 are logarithmic.</p>"
    )
    shown = choice("tuning", "Study", list(studies)) + remark + panels(figures)
    return Section("tuning", "Tuning", shown + _table(studies) + notes(remarks))


def _figure(name: str, charts: dict[str, Chart], title: str) -> str:
    return chart(identifier("tuning", name), "tuning", charts, title, title)


def _table(studies: dict[str, Trials]) -> str:
    body: list[list[Cell | str]] = []
    for name, trials in studies.items():
        best = trials.best
        states = list(trials.table["state"])
        value = float(best["value"])
        chosen = ", ".join(f"{key}={_short(best[key])}" for key in trials.keys)
        counts = [Cell(str(states.count(state)), states.count(state)) for state in ("complete", "pruned", "failed")]
        body.append([Path(name).name, trials.objective, Cell(f"{value:.4g}", value), chosen, *counts])
    head = ["study", "objective", "best value", "found", "complete", "pruned", "failed"]
    return table("tuning-table", Table("Best settings, on validation samples", head, body), wordy=[3])


def _short(word: str) -> str:
    try:
        return f"{float(word):.4g}"
    except ValueError:
        return word


def _best_so_far(trials: Trials) -> Chart:
    numbers = [int(number) for number in trials.complete["trial"]]
    data = [
        _points(numbers, trials.values().tolist(), "trial"),
        {
            "type": "scatter",
            "mode": "lines",
            "x": numbers,
            "y": trials.best_so_far().tolist(),
            "line": {"color": COLORS[1], "shape": "hv", "width": 2.2},
            "name": "best so far",
            "hovertemplate": "trial %{x}: %{y:.4~f}<extra>best so far</extra>",
        },
    ]
    return Chart(data, {"xaxis": axis("trial"), "yaxis": axis(text(trials.objective)), "height": HEIGHT})


def _slice(trials: Trials, key: str) -> Chart:
    numbers, words = trials.column(key)
    x: list[Any] = numbers.tolist() if words is None else [distinct(words)[int(place)] for place in numbers]
    kind = {"type": "category"} if words is not None else {"type": "log"} if is_logarithmic(numbers) else {}
    layout = {"xaxis": axis(text(key), **kind), "yaxis": axis(text(trials.objective)), "height": HEIGHT}
    return Chart([_points(x, trials.values().tolist(), "trial")], layout)


def _points(x: list[Any], y: list[float], name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "marker": {"color": COLORS[0], "size": 7},
        "name": name,
        "hovertemplate": "%{x}: %{y:.4~f}<extra></extra>",
    }
