"""The accuracies of the clients' own models: their distribution, and the worst decile."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from fedhead.report.page.charts import Chart, axis, distinct, text
from fedhead.report.page.content import Content, Entry
from fedhead.report.page.markup import Cell, Section, blocks, chart, choice, legend, panels, table


def section(content: Content) -> Section | None:
    """Return the distribution over clients of every method, one choice per setting."""
    charts: dict[str, Chart] = {}
    tables: dict[str, str] = {}
    for number, column in enumerate(content.columns):
        found = [(entry, seeds) for entry in content.of(column) if (seeds := _clients(entry))]
        if found:
            charts[column] = _boxes(content, found)
            tables[column] = _table(found, f"clients-{number}")
    if not charts:
        return None
    figure = chart("client-accuracy", "clients", charts, "Distribution of the clients' accuracies")
    remark = (
        "<p>Every client on its own test samples, all seeds together: quartiles, whiskers from lowest to highest.</p>"
    )
    body = choice("clients", "Setting", list(charts)) + legend("clients", content.styles) + remark
    return Section("clients", "Accuracy by client", body + panels([figure]) + blocks("clients", tables))


def _clients(entry: Entry) -> list[list[float]]:
    """Return the clients' accuracies of every seed."""
    found = [r.get("clients") for r in entry.records()]
    return [there for one in found if one and (there := [v for v in one if v is not None])]


def _boxes(content: Content, found: list[tuple[Entry, list[list[float]]]]) -> Chart:
    data: list[dict[str, Any]] = []
    names = distinct([entry.label for entry, _ in found], 30)
    for (entry, seeds), name in zip(found, names, strict=True):
        values = np.array([v for seed in seeds for v in seed])
        low, q1, median, q3, high = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
        summary = {"lowerfence": low, "q1": q1, "median": median, "q3": q3, "upperfence": high, "mean": values.mean()}
        data.append(
            {
                "type": "box",
                "y": [name],
                "orientation": "h",
                **{name: [float(value)] for name, value in summary.items()},
                "name": text(entry.label),
                "legendgroup": entry.method,
                "line": {"color": content.styles[entry.method].color},
            }
        )
    y = {"autorange": "reversed", "type": "category"}
    return Chart(
        data, {"xaxis": axis("accuracy of a client (%)", range=[-3, 103]), "yaxis": y, "height": 90 + 44 * len(data)}
    )


def _table(found: list[tuple[Entry, list[list[float]]]], id: str) -> str:
    body = []
    for entry, seeds in found:
        figures = [
            [statistics.fmean(s) for s in seeds],
            [statistics.median(s) for s in seeds],
            [statistics.fmean(sorted(s)[: max(1, len(s) // 10)]) for s in seeds],
            [min(s) for s in seeds],
            [statistics.stdev(s) if len(s) > 1 else 0.0 for s in seeds],
        ]
        means = [statistics.fmean(values) for values in figures]
        body.append([Cell(entry.label), *(Cell(f"{mean:.2f}", mean) for mean in means)])
    head = ["method", "mean", "median", "worst decile", "worst", "deviation"]
    return table(id, head, body, "Accuracy of the clients' own models in per cent, each number the mean over seeds")
