"""Accuracies of the clients' own models: their distribution, and the worst decile."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedhead.report.cross_site import matrix
from fedhead.report.page.charts import Chart, axis, distinct, text
from fedhead.report.page.content import Content, Entry
from fedhead.report.page.markup import Section, blocks, chart, choice, legend, panels, table
from fedhead.report.table import Cell, Table, number


def section(content: Content) -> Section | None:
    """Return the distribution over clients of every method, with a selector of the setting."""
    charts: dict[str, Chart] = {}
    tables: dict[str, str] = {}
    for i, column in enumerate(content.columns):
        entries = [(entry, seeds) for entry in content.of(column) if (seeds := _clients(entry))]
        if entries:
            charts[column] = _boxes(content, entries)
            tables[column] = _table(entries, f"clients-{i}")
    if not charts:
        return None
    figure = chart("client-accuracy", "clients", charts, "Distribution of the clients' accuracies")
    remark = (
        "<p>Every client on its own test samples, all seeds together: quartiles, whiskers from lowest to highest.</p>"
    )
    body = choice("clients", "Setting", list(charts)) + legend("clients", content.styles) + remark
    return Section("clients", "Accuracy by client", body + panels([figure]) + blocks("clients", tables))


def cross_site_section(content: Content) -> Section | None:
    """Return every site's model on every site's test samples, with a selector of run and metric."""
    tables = {f"{content.name(run.path)}: {each.title}": each for run in content.runs for each in matrix(run.path)}
    if not tables:
        return None
    shown = {key: table(f"sites-{i}", each) for i, (key, each) in enumerate(tables.items())}
    remark = "<p>Rows: the global model and the sites' final models. Columns: test samples of a site.</p>"
    return Section("sites", "Models by site", choice("sites", "Table", list(tables)) + remark + blocks("sites", shown))


def _clients(entry: Entry) -> list[list[float]]:
    """Return the clients' accuracies of every seed."""
    seeds = [r.get("clients") for r in entry.records()]
    return [there for values in seeds if values and (there := [v for v in values if v is not None])]


def _boxes(content: Content, entries: list[tuple[Entry, list[list[float]]]]) -> Chart:
    names = distinct([entry.label for entry, _ in entries], 30)
    data: list[dict[str, Any]] = [
        {
            "type": "box",
            "x": np.concatenate(seeds).round(2),
            "y0": name,
            "orientation": "h",
            "boxpoints": False,
            "boxmean": True,
            "name": text(entry.label),
            "legendgroup": entry.method,
            "line": {"color": content.styles[entry.method].color},
        }
        for (entry, seeds), name in zip(entries, names, strict=True)
    ]
    x = axis("accuracy of a client (%)", range=[-3, 103])
    y = {"autorange": "reversed", "type": "category"}
    return Chart(data, {"xaxis": x, "yaxis": y, "height": 90 + 44 * len(data)})


def _table(entries: list[tuple[Entry, list[list[float]]]], id: str) -> str:
    body: list[list[Cell | str]] = []
    for entry, seeds in entries:
        each = [np.sort(values) for values in seeds]
        columns = [
            [values.mean() for values in each],
            [np.median(values) for values in each],
            [values[: max(1, len(values) // 10)].mean() for values in each],
            [values[0] for values in each],
            [values.std(ddof=1) if len(values) > 1 else 0.0 for values in each],
        ]
        body.append([entry.label, *(number(float(np.mean(column)), ".2f") for column in columns)])
    head = ["method", "mean", "median", "worst decile", "worst", "deviation"]
    title = "Accuracy of the clients' own models in per cent, each number the mean over seeds"
    return table(id, Table(title, head, body))
