"""Searches: the best value so far, slices, parallel coordinates, the importance of each key, and the best settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedhead.core.system.errors import BadInput
from fedhead.report.compare.study_trials import Trials, is_logarithmic, read_study
from fedhead.report.page.charts import HEIGHT, Chart, axis, distinct, text
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, chart, choice, identifier, notes, panels, table
from fedhead.report.style import COLORS
from fedhead.report.table import Cell, Table

LINES = 100  # trials of the parallel coordinates, the best ones


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
        _figure("parallel", {name: _parallel(one) for name, one in studies.items()}, "Parallel coordinates"),
        _figure("importance", {name: _importance(one) for name, one in studies.items()}, "Importance"),
    ]
    for number in range(max(len(one.keys) for one in studies.values())):
        slices = {name: _slice(one, one.keys[number]) for name, one in studies.items() if number < len(one.keys)}
        keys = {one.keys[number] for one in studies.values() if number < len(one.keys)}
        title = f"Value by {keys.pop()}" if len(keys) == 1 else "Value by key"
        figures.append(_figure(f"slice-{number}", slices, title))
    remark = (
        "<p>Points: trials that were trained to their end, on validation samples. Parallel coordinates: darker lines "
        f"are better, the {LINES} best at most; keys that span more than a factor of 20 are logarithmic. Importance: "
        "the share of the variance that a random forest explains by each key.</p>"
    )
    shown = choice("tuning", "Study", list(studies)) + remark + panels(figures)
    return Section("tuning", "Tuning", shown + _table(studies) + notes(remarks))


def _figure(name: str, charts: dict[str, Chart], title: str) -> str:
    return chart(identifier("tuning", name), "tuning", charts, title, title)


def _table(studies: dict[str, Trials]) -> str:
    body: list[list[Cell | str]] = []
    for name, trials in studies.items():
        best = trials.best
        states = [row["state"] for row in trials.rows]
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
    numbers = [int(row["trial"]) for row in trials.complete]
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


def _parallel(trials: Trials) -> Chart:
    names, lines = distinct([*trials.keys, trials.objective], 24), trials.lines()
    goodness = lines[:, -1] if trials.maximizes else 1 - lines[:, -1]
    data = []
    for place in np.argsort(goodness)[-LINES:]:  # the best on top
        row = trials.complete[int(place)]
        said = ", ".join(f"{key}={_short(row[key])}" for key in trials.keys)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": names,
                "y": lines[place].tolist(),
                "line": {"color": COLORS[0], "width": 1.5},
                "opacity": 0.1 + 0.9 * float(goodness[place]) ** 2,
                "hovertemplate": f"trial {row['trial']}: {text(said, 200)}, {_short(row['value'])}<extra></extra>",
            }
        )
    marks = [
        {"x": name, "y": height, "text": text(word, 24), "showarrow": False, "xanchor": "left", "xshift": 4}
        for name, found in zip(names, trials.marks(), strict=True)
        for height, word in found
    ]
    layout = {"xaxis": axis("", type="category"), "yaxis": axis("", showticklabels=False), "annotations": marks}
    return Chart(data, {**layout, "height": HEIGHT})


def _importance(trials: Trials) -> Chart:
    found = sorted(trials.importance.items(), key=lambda one: one[1])
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": distinct([key for key, _ in found], 24),
        "x": [share for _, share in found],
        "marker": {"color": COLORS[0]},
        "hovertemplate": "%{y}: %{x:.2f}<extra></extra>",
    }
    layout = {"xaxis": axis("share of the explained variance", range=[0, 1]), "yaxis": {"type": "category"}}
    return Chart([bars], {**layout, "height": HEIGHT})
