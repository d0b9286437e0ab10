"""Costs of a result: accuracy against bytes, and time by activity."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from fedhead.metrics.records import Row
from fedhead.report.histories import aligned
from fedhead.report.page.charts import Chart, axis, lines, mark
from fedhead.report.page.content import Content, Entry
from fedhead.report.page.markup import Section, chart, folded, identifier, legend, panels, table
from fedhead.report.table import Cell, Table, number
from fedhead.runs.read_runs import Run

FOLDED = 10  # tables with more rows are folded


def traffic_section(content: Content) -> Section | None:
    """Return the accuracy over the traffic, one panel per setting, and a table of the totals."""
    figures = []
    for i, column in enumerate(content.columns):
        data = [trace for entry in content.of(column) for trace in _against_traffic(content, entry)]
        if data:
            x = axis("MB sent and received by all clients", rangemode="tozero")
            charts = {"": Chart(data, {"xaxis": x, "yaxis": axis("accuracy (%)")})}
            title = column if len(content.columns) > 1 else ""
            figures.append(
                chart(identifier("traffic", i), "traffic", charts, f"Accuracy against traffic, {column}", title)
            )
    body: list[list[Cell | str]] = []
    for entry in content.methods:
        if entry.runs:
            total = statistics.fmean(_megabytes(run.rows) for run in entry.runs)
            participants = sum(r.get("participants", 0) for run in entry.runs for r in run.rows)
            each = 1e3 * total * len(entry.runs) / participants if participants else None
            body.append([*content.names(entry), number(total, ",.2f"), number(each, ",.1f")])
    if not body:
        return None
    head = content.head("MB of all rounds", "kB per client and round")
    shown = legend("traffic", content.styles) + panels(figures) if figures else ""
    totals = _numbers("traffic", Table("Traffic of the rounds, up and down, mean over seeds", head, body))
    return Section("traffic", "Bytes against accuracy", shown + totals)


def _numbers(id: str, content: Table) -> str:
    shown = table(f"{id}-table", content, wordy=["setting"])
    return folded(f"{id}-numbers", "The numbers", shown) if len(content.body) > FOLDED else shown


def _against_traffic(content: Content, entry: Entry) -> list[dict[str, Any]]:
    """Return the accuracy of an entry over its traffic: a line over the rounds, or the mark of a stage after them."""
    look = content.styles[entry.method]
    for metric in ("accuracy", "personal"):
        if entry.stage:
            stages = [(run, row) for run, row in zip(entry.runs, entry.records(), strict=True)]
            stages = [(run, row) for run, row in stages if row.get(metric) is not None]
            if stages:
                x = statistics.fmean(_megabytes([*run.rows, row]) for run, row in stages)
                values = [row[metric] for _, row in stages]
                return [mark(entry.label, x, values, look, content.symbols[entry.stage], entry.method, " %")]
            continue
        rounds, table = aligned([run.rows for run in entry.runs], metric)
        if len(rounds):
            sent = [list(accumulate(_megabytes([row]) for row in run.rows)) for run in entry.runs]
            megabytes = [statistics.fmean(each[r - 1] for each in sent) for r in rounds]
            return lines(entry.method, megabytes, table.mean(axis=0).tolist(), None, look, unit=" %")
    return []


def _megabytes(rows: Sequence[Row]) -> float:
    return float(sum(row.get("bytes_up", 0) + row.get("bytes_down", 0) for row in rows)) / 1e6


def time_section(content: Content) -> Section | None:
    """Return the seconds spent on compiling, rounds and stages."""
    entries = [(entry, [_seconds(run) for run in entry.runs]) for entry in content.methods if entry.runs]
    if not entries:
        return None
    kinds = list(dict.fromkeys(kind for _, runs in entries for seconds in runs for kind in seconds))
    body: list[list[Cell | str]] = []
    for entry, runs in entries:
        means = [statistics.fmean(seconds.get(kind, 0.0) for seconds in runs) for kind in kinds]
        body.append([*content.names(entry), *(number(value, ",.2f") for value in [*means, sum(means)])])
    head = content.head(*kinds, "all")
    return Section("time", "Time", _numbers("time", Table("Seconds, mean over seeds", head, body)))


def _seconds(run: Run) -> dict[str, float]:
    """Return the seconds of a finished run by activity."""
    result = run.result or {}
    out = {"compiling": float(result.get("compile_seconds") or 0.0), "rounds": sum(r["seconds"] for r in run.rows)}
    return out | {
        f"stage {name}": float(row.get("seconds") or 0.0) for name, row in (result.get("stages") or {}).items()
    }
