"""Accuracy of each class, and the confusion of classes, after the rounds and after each stage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhead.report.page.charts import Chart, axis, distinct, heat, text
from fedhead.report.page.content import Content, Entry, class_names
from fedhead.report.page.markup import Section, chart, choice, identifier, legend, panels

NAMED = 40  # maximum number of classes in a confusion matrix


def section(content: Content) -> Section | None:
    """Return the accuracies by class, with a selector of the setting."""
    charts: dict[str, Chart] = {}
    for column in content.columns:
        means = [(entry, values) for entry in content.of(column) if (values := _means(entry)) is not None]
        if means:
            charts[column] = _chart(content, means)
    if not charts:
        return None
    figure = chart("class-accuracy", "classes", charts, "Accuracy by class")
    remark = "<p>One dot per class: the mean over seeds. Stages have the color of their method and other marks.</p>"
    body = choice("classes", "Setting", list(charts)) + legend("classes", content.styles) + remark + panels([figure])
    return Section("classes", "Accuracy by class", body)


def _means(entry: Entry) -> NDArray[np.float64] | None:
    """Return the mean over seeds by class; NaN for a class that was never tested."""
    values = [record["per_class"] for record in entry.records() if record.get("per_class")]
    if not values or len({len(each) for each in values}) > 1:
        return None
    table = np.array(values, dtype=np.float64)  # None becomes NaN
    tested = ~np.isnan(table)
    means: NDArray[np.float64] = np.where(
        tested.any(axis=0), np.nansum(table, axis=0) / np.maximum(tested.sum(axis=0), 1), np.nan
    )
    return means


def _chart(content: Content, means: list[tuple[Entry, NDArray[np.float64]]]) -> Chart:
    classes = max(len(values) for _, values in means)
    names = distinct(class_names([run for entry, _ in means for run in entry.runs], classes))
    data = [
        {
            "name": text(entry.label),
            "legendgroup": entry.method,
            "type": "scatter",
            "mode": "markers",
            "offsetgroup": text(entry.label),
            "x": names,
            "y": values,
            "marker": {
                "color": content.styles[entry.method].color,
                "symbol": "diamond-open" if entry.stage else "circle",
                "size": 9,
            },
            "hovertemplate": "%{x}: %{y:.2f} %<extra>%{fullData.name}</extra>",
        }
        for entry, values in means
    ]
    y = axis("accuracy (%)", range=[-3, 103])
    return Chart(data, {"xaxis": axis("class", type="category"), "yaxis": y, "height": 360, "scattermode": "group"})


def confusion_section(content: Content) -> Section | None:
    """Return the confusion after the rounds and after each stage, with a selector of method and setting."""
    names: dict[str, str] = {}
    charts: dict[str, dict[str, Chart]] = {}
    for entry in content.entries:
        total = _confusion(entry)
        if total is not None and len(total) <= NAMED:
            key = names.setdefault(entry.name, f"c{len(names)}")
            after = f"after {entry.stage}" if entry.stage else "after the rounds"
            charts.setdefault(after, {})[key] = _matrix(total, class_names(entry.runs, len(total)))
    if not charts:
        return None
    figures = [
        chart(identifier("confusion", i), "confusion", matrices, f"Confusion matrix {after}", after)
        for i, (after, matrices) in enumerate(charts.items())
    ]
    remark = "<p>Share of a class's test samples (rows) that are predicted as each class (columns), over all seeds.</p>"
    options = choice("confusion", "Method and setting", {key: label for label, key in names.items()})
    return Section("confusion", "Confusion", options + remark + panels(figures))


def _confusion(entry: Entry) -> NDArray[np.float64] | None:
    matrices = [np.array(r["confusion"], dtype=float) for r in entry.records() if r.get("confusion")]
    if not matrices or len({matrix.shape for matrix in matrices}) > 1 or matrices[0].ndim != 2:
        return None
    total: NDArray[np.float64] = np.sum(matrices, axis=0)
    return total


def _matrix(total: NDArray[np.float64], names: list[str]) -> Chart:
    share = np.round(100 * total / np.maximum(total.sum(axis=1, keepdims=True), 1), 2)
    return heat(
        share.tolist(),
        rows="true",
        columns="predicted",
        value="%",
        row_names=names,
        column_names=names,
        bounds=(0, 100),
        height=150 + 24 * min(len(names), 20),
        texts=[[f"{value:.0f}" if value >= 0.5 else "" for value in row] for row in share],
    )
