"""What a result costs: bytes against accuracy, time per round, and where the time went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedhead.metrics.records import Row
from fedhead.report.page.charts import POINTS, Chart, axis, distinct, lines, mark, round_axis, text
from fedhead.report.page.content import Content, Entry
from fedhead.report.page.markup import Cell, Section, chart, choice, folded, identifier, legend, panels, table
from fedhead.report.style import COLORS
from fedhead.runs.read_runs import Run

FOLDED = 10  # rows of a table that is shown on demand only


def traffic_section(content: Content) -> Section | None:
    """Return the accuracy over what was sent and received, one panel per setting, and a table of the totals."""
    figures = []
    for number, column in enumerate(content.columns):
        data = [trace for entry in content.of(column) for trace in _against_traffic(content, entry)]
        if data:
            layout = {
                "xaxis": axis("MB sent and received by all clients", rangemode="tozero"),
                "yaxis": axis("accuracy (%)"),
            }
            title = column if len(content.columns) > 1 else ""
            label = f"Accuracy against traffic, {column}"
            figures.append(chart(identifier("traffic", number), "traffic", {"": Chart(data, layout)}, label, title))
    body: list[list[Cell | str]] = []
    for entry in content.methods:
        if not entry.runs:
            continue
        total = statistics.fmean(_megabytes(run.rows) for run in entry.runs)
        part = sum(r.get("participants", 0) for run in entry.runs for r in run.rows)
        each = 1e3 * total * len(entry.runs) / part if part else None
        cells = [Cell(f"{total:,.2f}", total), Cell("–" if each is None else f"{each:,.1f}", each)]
        body.append([entry.method, entry.column, *cells])
    if not body:
        return None
    head = ["method", "setting", "MB of all rounds", "kB per client and round"]
    found = table("traffic-table", head, body, "Traffic of the rounds, up and down, mean over seeds", [1])
    found = folded("traffic-numbers", "The numbers", found) if len(body) > FOLDED else found
    shown = legend("traffic", content.styles) + panels(figures) if figures else ""
    return Section("traffic", "Bytes against accuracy", shown + found)


def _against_traffic(content: Content, entry: Entry) -> list[dict[str, Any]]:
    """Return the accuracy of an entry over its traffic: a line over the rounds, or the mark of a stage after them."""
    look = content.styles[entry.method]
    for metric in ("accuracy", "personal"):
        if entry.stage:
            found = [
                (run, row) for run, row in zip(entry.runs, entry.records(), strict=True) if row.get(metric) is not None
            ]
            if found:
                x = statistics.fmean(_megabytes([*run.rows, row]) for run, row in found)
                values = [row[metric] for _, row in found]
                return [mark(entry.label, x, values, look, content.symbols[entry.stage], entry.method, " %")]
            continue
        megabytes, means = _against(entry, metric)
        if megabytes:
            return lines(entry.method, megabytes, means, None, look, unit=" %")
    return []


def _megabytes(rows: Sequence[Row]) -> float:
    return float(sum(row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in rows)) / 1e6


def _against(entry: Entry, metric: str) -> tuple[list[float], list[float]]:
    found = []
    for run in entry.runs:
        sums = accumulate((row["bytes_up"] + row["bytes_down"]) / 1e6 for row in run.rows)
        found.append(
            {r["round"]: (mb, r[metric]) for mb, r in zip(sums, run.rows, strict=True) if r.get(metric) is not None}
        )
    rounds = sorted(set.intersection(*(set(one) for one in found))) if found else []
    means = [np.mean([one[r] for one in found], axis=0) for r in rounds]
    return [float(m[0]) for m in means], [float(m[1]) for m in means]


def time_section(content: Content) -> Section | None:
    """Return the seconds of each round, and what the whole time went into."""
    measured = [entry for entry in content.methods if entry.runs]
    if not measured:
        return None
    rounds = {column: found for column in content.columns if (found := _round_seconds(content, column)) is not None}
    kinds = list(dict.fromkeys(kind for entry in measured for run in entry.runs for kind in _spent(run)))
    means = [
        [statistics.fmean(_spent(run).get(kind, 0.0) for run in entry.runs) for kind in kinds] for entry in measured
    ]
    names = [f"{e.method} · {e.column}" if len(content.columns) > 1 else e.method for e in measured]
    figures = [chart("seconds", "time", rounds, "Seconds per round", "Seconds per round")] if rounds else []
    bars = {"": _bars(distinct(names, 36), kinds, means)}
    figures.append(chart("spent", "spent", bars, "Where the time went", "Where the time went"))
    body: list[list[Cell | str]] = [
        [entry.method, entry.column, *(Cell(f"{value:,.2f}", value) for value in [*found, sum(found)])]
        for entry, found in zip(measured, means, strict=True)
    ]
    numbers = table("time-table", ["method", "setting", *kinds, "all"], body, "Seconds, mean over seeds", [1])
    numbers = folded("time-numbers", "The numbers", numbers) if len(body) > FOLDED else numbers
    shown = choice("time", "Setting", list(rounds)) + legend("time", content.styles) + panels(figures)
    return Section("time", "Time", shown + numbers)


def _round_seconds(content: Content, column: str) -> Chart | None:
    data = []
    for entry in (entry for entry in content.methods if entry.column == column):
        shortest = min((len(run.rows) for run in entry.runs), default=0)
        if shortest:
            seconds = [statistics.fmean(run.rows[i]["seconds"] for run in entry.runs) for i in range(shortest)]
            step = -(-shortest // POINTS)
            look = content.styles[entry.method]
            data += lines(entry.method, range(1, shortest + 1, step), seconds[::step], None, look, unit=" s")
    last = max((len(run.rows) for entry in content.of(column) for run in entry.runs), default=0)
    layout = {"xaxis": round_axis(last), "yaxis": axis("seconds", rangemode="tozero")}
    return Chart(data, layout) if data else None


def _bars(names: list[str], kinds: list[str], means: list[list[float]]) -> Chart:
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": [found[i] for found in means],
            "name": text(kind),
            "marker": {"color": COLORS[i % len(COLORS)]},
            "hovertemplate": "%{x:.2f} s<extra>%{fullData.name}</extra>",
        }
        for i, kind in enumerate(kinds)
    ]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "xaxis": axis("seconds, mean over seeds"),
        "yaxis": {"autorange": "reversed", "type": "category"},
        "height": 110 + 24 * len(names),
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0},
        "margin": {"t": 40},
    }
    return Chart(data, layout)


def _spent(run: Run) -> dict[str, float]:
    """Return the seconds of a finished run by what they went into."""
    result = run.result or {}
    out = {"preparation": float(result.get("preparing") or 0.0), "rounds": sum(r["seconds"] for r in run.rows)}
    return out | {
        f"stage {name}": float(row.get("seconds") or 0.0) for name, row in (result.get("stages") or {}).items()
    }
