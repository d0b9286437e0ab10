"""Partitions: one bubble per client and class, its area the samples; a heat map where clients are many."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.report.page.charts import Chart, axis, distinct, heat, text
from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, chart, choice, panels
from fedhead.report.style import COLORS
from fedhead.runs.read_runs import Run

BUBBLES = 40  # clients that bubbles can show
LINES = 120  # of a heat map; of more clients several share one
MOST = 24  # partitions of one page
DIAMETER = 22  # of the largest bubble, in pixels


def section(content: Content) -> Section | None:
    """Return the partitions of the runs, of which the reader chooses."""
    found: dict[str, Run] = {}
    for run in sorted(content.runs, key=lambda run: content.columns.index(content.arrangement.column(run.recipe))):
        if run.counts is not None and run.counts.size:
            found.setdefault(_label(run), run)
    if not found:
        return None
    shown = {f"p{i}": label for i, label in enumerate(list(found)[:MOST])}
    charts, captions = {}, set()
    for key, label in shown.items():
        run = found[label]
        assert run.counts is not None, "only such runs were taken"
        large = len(run.counts) > BUBBLES
        charts[key] = _map(run.counts, run.class_names) if large else _bubbles(run.counts, run.class_names)
        captions.add("map" if large else "bubbles")
    left = len(found) - len(shown)
    remarks = {"bubbles": "The area of a bubble is its number of samples.", "map": "Cells without samples are empty."}
    remark = " ".join(remarks[name] for name in sorted(captions))
    remark += f" {left} more partitions are not shown." if left else ""
    figure = chart("partition", "partitions", charts, "Training samples by client and class")
    body = choice("partitions", "Partition", shown) + f"<p>{remark}</p>" + panels([figure])
    return Section("partitions", "Samples per client and class", body)


def _label(run: Run) -> str:
    r = run.recipe
    seed = r.seed if r.partition_seed is None else r.partition_seed
    return f"{r.dataset}, {r.partition}, {r.clients} clients, split of seed {seed}"


def _bubbles(counts: NDArray[np.int64], names: tuple[str, ...] | None) -> Chart:
    clients, classes = counts.shape
    most = max(int(counts.max()), 1)
    k, c = np.nonzero(counts)
    shown = _names(names, classes)
    common = {"type": "scatter", "mode": "markers"}
    dots = {
        **common,
        "x": k,
        "y": c,
        "customdata": counts[k, c],
        "text": [text(shown[i], 40) for i in c],
        "marker": {
            "size": DIAMETER * np.sqrt(counts[k, c] / most),
            "color": COLORS[0],
            "opacity": 0.8,
            "line": {"width": 0},
        },
        "hovertemplate": "client %{x}, class %{text}: %{customdata} samples<extra></extra>",
    }
    # the legend of sizes: a strip with its own axes above
    sizes = sorted({most, max(round(most / 4), 1), max(round(most / 16), 1)})
    height = 150 + 26 * min(classes, 40)
    strip = 1 - 38 / (height - 60)
    sample = {
        **common,
        "mode": "markers+text",
        "x": [1 + i for i in range(len(sizes))],
        "y": [0] * len(sizes),
        "xaxis": "x2",
        "yaxis": "y2",
        "text": [f" {size}" for size in sizes],
        "textposition": "middle right",
        "marker": {"size": [DIAMETER * (size / most) ** 0.5 for size in sizes], "color": COLORS[0], "opacity": 0.8},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    quiet = {"visible": False, "fixedrange": True}
    layout: dict[str, Any] = {
        "height": height,
        "xaxis": axis("client", range=[-0.7, clients - 0.3], zeroline=False, dtick=-(-clients // 20)),
        "yaxis": axis("class", range=[-0.7, classes - 0.3], domain=[0, strip - 0.02], zeroline=False),
        "xaxis2": {**quiet, "domain": [0, 1], "range": [0, 4], "anchor": "y2"},
        "yaxis2": {**quiet, "domain": [strip, 1], "range": [-1, 1], "anchor": "x2"},
        "annotations": [
            {"text": "samples", "xref": "x2", "yref": "y2", "x": 0, "y": 0, "xanchor": "left", "showarrow": False}
        ],
    }
    if classes <= 40:
        layout["yaxis"] |= {"tickvals": list(range(classes)), "ticktext": distinct(shown)}
    return Chart([dots, sample], layout)


def _map(counts: NDArray[np.int64], names: tuple[str, ...] | None) -> Chart:
    clients, classes = counts.shape
    each = -(-clients // LINES)
    order = np.lexsort((-counts.max(axis=1), counts.argmax(axis=1)))  # clients of the same main class side by side
    rows = [counts[order[start : start + each]].mean(axis=0) for start in range(0, clients, each)]
    z = [[float(round(v, 2)) if v else None for v in row] for row in rows]
    value = "samples" if each == 1 else f"mean samples of {each} clients"
    chart_ = heat(
        z,
        rows="clients, sorted by main class" if each == 1 else f"groups of {each} clients, sorted by main class",
        columns="class",
        value=value,
        column_names=_names(names, classes) if classes <= 40 else None,
        height=460,
    )
    chart_.data[0]["hovertemplate"] = f"class %{{x}}: %{{z}} {value}<extra></extra>"
    return chart_


def _names(names: tuple[str, ...] | None, classes: int) -> list[str]:
    return list(names) if names is not None and len(names) == classes else [str(c) for c in range(classes)]
