"""The accuracy of each class, and which classes are taken for which, before and after calibration."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.report.page.charts import Chart, axis, distinct, heat, text
from fedhead.report.page.content import Content, Entry
from fedhead.report.page.markup import Cell, Section, blocks, chart, choice, identifier, legend, panels, table

NAMED = 40  # classes that an axis and a matrix can name
CONFUSED = 15  # pairs of classes in a table


def section(content: Content) -> Section | None:
    """Return the accuracies by class, one choice per setting."""
    charts: dict[str, Chart] = {}
    for column in content.columns:
        found = [(entry, means) for entry in content.of(column) if (means := _means(entry))]
        if found:
            charts[column] = _chart(content, found, column)
    if not charts:
        return None
    figure = chart("class-accuracy", "classes", charts, "Accuracy by class")
    remark = "<p>One dot per class: the mean over seeds. Stages have the color of their method and other marks.</p>"
    body = choice("classes", "Setting", list(charts)) + legend("classes", content.styles) + remark + panels([figure])
    return Section("classes", "Accuracy by class", body)


def _means(entry: Entry) -> list[float | None]:
    found = [record["per_class"] for record in entry.records() if record.get("per_class")]
    if not found or len({len(one) for one in found}) > 1:
        return []
    return [
        statistics.fmean(there) if (there := [v for v in one if v is not None]) else None
        for one in zip(*found, strict=True)
    ]


def _chart(content: Content, found: list[tuple[Entry, list[float | None]]], column: str) -> Chart:
    classes = max(len(means) for _, means in found)
    names = class_names(content, column, classes)
    data = []
    for entry, means in found:
        look = content.styles[entry.method]
        symbol = "diamond-open" if entry.stage else "circle"
        common: dict[str, Any] = {"name": text(entry.label), "legendgroup": entry.method}
        if classes <= NAMED:
            mark = {"color": look.color, "symbol": symbol, "size": 9}
            shown = {"x": distinct(names), "y": means}
            data.append(
                {
                    **common,
                    "type": "scatter",
                    "mode": "markers",
                    "offsetgroup": text(entry.label),
                    **shown,
                    "marker": mark,
                }
            )
        else:  # too many to name: their distribution
            values = [v for v in means if v is not None]
            data.append({**common, "type": "box", "y": values, "line": {"color": look.color}, "boxmean": True})
    for trace in data:
        trace["hovertemplate"] = "%{x}: %{y:.2f} %<extra>%{fullData.name}</extra>"
    title = "class" if classes <= NAMED else ""
    y = axis("accuracy (%)", range=[-3, 103])
    return Chart(data, {"xaxis": axis(title, type="category"), "yaxis": y, "height": 360, "scattermode": "group"})


def confusion_section(content: Content) -> Section | None:
    """Return the confusion after the rounds and after each stage, one choice per method and setting."""
    contents: dict[str, str] = {}
    names: dict[str, str] = {}
    charts: dict[str, dict[str, Chart]] = {}
    for number, entry in enumerate(content.entries):
        total = _confusion(entry)
        if total is None:
            continue
        label = f"{entry.method} · {entry.column}"
        key = next((k for k, name in names.items() if name == label), f"c{len(names)}")
        names[key] = label
        called = class_names(content, entry.column, len(total))
        if len(total) <= NAMED:
            after = f"after {entry.stage}" if entry.stage else "after the rounds"
            charts.setdefault(after, {})[key] = _matrix(total, called)
        else:
            contents[key] = contents.get(key, "") + _pairs(total, called, entry.label, f"confused-{number}")
    if not names:
        return None
    figures = [
        chart(identifier("confusion", i), "confusion", found, f"Confusion matrix {after}", after)
        for i, (after, found) in enumerate(charts.items())
    ]
    remark = "<p>Share of a class's test samples (rows) that are taken for each class (columns), over all seeds.</p>"
    body = choice("confusion", "Method and setting", names) + remark + panels(figures) + blocks("confusion", contents)
    return Section("confusion", "Confusion", body)


def _confusion(entry: Entry) -> NDArray[np.float64] | None:
    found = [np.array(r["confusion"], dtype=float) for r in entry.records() if r.get("confusion")]
    if not found or len({one.shape for one in found}) > 1 or found[0].ndim != 2:
        return None
    total: NDArray[np.float64] = np.sum(found, axis=0)
    return total


def _matrix(total: NDArray[np.float64], names: list[str]) -> Chart:
    share = 100 * total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    z = [[round(float(v), 2) for v in row] for row in share]
    size = int(150 + 24 * min(len(names), 20))
    return heat(
        z,
        rows="true",
        columns="predicted",
        value="%",
        row_names=names,
        column_names=names,
        bounds=(0, 100),
        height=size,
    )


def _pairs(total: NDArray[np.float64], names: list[str], row: str, id: str) -> str:
    share = 100 * total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(share, 0)
    order = np.dstack(np.unravel_index(np.argsort(-share, axis=None)[:CONFUSED], share.shape))[0]
    body = [[names[i], names[j], Cell(f"{share[i, j]:.1f}", float(share[i, j]))] for i, j in order]
    return table(id, ["true class", "predicted", "%"], body, f"{row}: the classes that are confused most often")


def class_names(content: Content, column: str, classes: int) -> list[str]:
    """Return the names of a column's classes, numbers where runs disagree on them."""
    found = {run.class_names for entry in content.of(column) for run in entry.runs}
    named = found.pop() if len(found) == 1 else None
    return list(named) if named is not None and len(named) == classes else [str(c) for c in range(classes)]
