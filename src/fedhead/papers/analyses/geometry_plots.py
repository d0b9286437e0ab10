"""Figures of the analyses of the classifier's geometry and of fine-tuning (FedETF)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedhead.papers.analyses.plots import class_colors
from fedhead.report.style import (
    WIDTHS,
    fitting,
    legend_below,
    line,
    log_scale,
    panels,
    styled,
    thin_ticks,
    without_axes,
)

Curve = Sequence[Mapping[str, float]]
TITLES = {
    "nc1": "NC1: variance within\nover that between classes",
    "nc2": "NC2: error of the\nprototypes' simplex",
    "nc3": "NC3: cosine of classifier\nand prototypes",
    "prototype_consistency": "consistency of the\nclients' prototypes",
    "classifier_consistency": "consistency of the\nclients' classifiers",
}


@styled
def collapse(runs: Mapping[str, Curve], width: float = WIDTHS[2]) -> Figure:
    """Plot each metric over the rounds, one panel per metric, one line per run (FedETF, Fig. 5).

    Points of rounds that follow each other are joined; between others nothing is known, so there is no line.
    """
    fig, axes = panels(len(TITLES), width, 3, 1.9)
    for ax, (key, title) in zip(axes, TITLES.items(), strict=True):
        for i, rows in enumerate(runs.values()):
            present = [row for row in rows if key in row]
            x, y = [row["round"] for row in present], [row[key] for row in present]
            ax.plot(*_with_gaps(x, y), **line(i))
        ax.set(xlabel="round", title=title)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        ax.grid()
    legend_below(fig, axes[0].lines, list(runs))
    return fig


def _with_gaps(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return points with NaN between those that are more than one round apart.

    >>> _with_gaps([1, 2, 9], [0.5, 0.6, 0.9])
    ([1, 2, nan, 9], [0.5, 0.6, nan, 0.9])
    """
    xs: list[float] = []
    ys: list[float] = []
    for i, (a, b) in enumerate(zip(x, y, strict=True)):
        if i and a - x[i - 1] > 1:
            xs.append(float("nan"))
            ys.append(float("nan"))
        xs.append(a)
        ys.append(b)
    return xs, ys


@styled
def classifiers(runs: Mapping[str, tuple[Any, Any, Any]], width: float = WIDTHS[2]) -> Figure:
    """Plot the cosines as a map and the embedded vectors, colored by class, one row per run (FedETF, Fig. 1)."""
    fig = Figure(figsize=(width, 0.42 * width * len(runs) + 0.2), layout="constrained")
    for row, (name, (cosines, points, labels)) in enumerate(runs.items()):
        left = fig.add_subplot(len(runs), 2, 2 * row + 1)
        shown = left.imshow(cosines, vmin=-1, vmax=1, cmap="coolwarm", interpolation="nearest")
        left.set(title=fitting(name, 0.42 * width), xlabel="client", ylabel="client")
        for axis in ("x", "y"):
            thin_ticks(left, axis, [str(k) for k in range(len(cosines))], 8)
        fig.colorbar(shown, ax=left, label="mean cosine")
        right = fig.add_subplot(len(runs), 2, 2 * row + 2)
        x, y = np.asarray(points).T
        classes = int(labels.max()) + 1
        dots = right.scatter(x, y, c=labels, s=8, lw=0, cmap=class_colors(classes), vmin=-0.5, vmax=classes - 0.5)
        right.set_title("classifier vectors")
        without_axes(right)
        scale = fig.colorbar(dots, ax=right, label="class")
        thin_ticks(scale.ax, "y", [str(c) for c in range(classes)], 10 if width > WIDTHS[1] else 5)
    return fig


@styled
def steps(runs: Mapping[str, Mapping[str, float]], width: float = WIDTHS[2]) -> Figure:
    """Plot the clients' mean accuracy after each step of fine-tuning, one line per run (FedETF, Fig. 6b)."""
    fig, (ax,) = panels(1, width, 1, 2.5)
    names = list(dict.fromkeys(name for values in runs.values() for name in values))
    for i, values in enumerate(runs.values()):
        ax.plot([names.index(name) for name in values], list(values.values()), **line(i))
    thin_ticks(ax, "x", names, 24 if width > WIDTHS[1] else 12)
    ax.tick_params(axis="x", rotation=90)
    ax.set(ylabel="personal accuracy (%)")
    ax.grid(axis="y")
    legend_below(fig, ax.lines, list(runs))
    return fig


@styled
def dimension(points: Mapping[int, Mapping[str, float]], width: float = WIDTHS[2]) -> Figure:
    """Plot the accuracy and the errors of neural collapse against the dimension of the features (FedETF, Fig. 6a)."""
    fig, axes = panels(2, width, 2, 2.3)
    x = sorted(points)
    axes[0].plot(x, [points[d]["accuracy"] for d in x], **line(0))
    axes[0].set(ylabel="accuracy (%)")
    shown = {"nc1": "NC1", "nc2": "NC2"}
    for i, key in enumerate(shown, 1):
        axes[1].plot(x, [points[d][key] for d in x], **line(i))
    axes[1].set(ylabel="error of neural collapse")
    for ax in axes:
        ax.set(xlabel="dimension of the features")
        log_scale(ax)
        ax.grid()
    legend_below(fig, axes[1].lines, list(shown.values()))
    return fig
