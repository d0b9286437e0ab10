"""Figures of the analyses of drift and calibration (CCVR)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedhead.report.style import (
    COLORS,
    INK,
    MARKERS,
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

Matrix = NDArray[Any]
_NARROW = 4.5  # inches below which a figure has one column's width


@styled
def heat_maps(matrices: Mapping[str, Matrix], clients: Sequence[int], width: float = WIDTHS[2]) -> Figure:
    """Plot pairwise similarities of clients, one map per layer (CCVR, Fig. 1)."""
    fig, axes = panels(len(matrices), width, 3, legend=True)
    shown: Any = None
    for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
        shown = ax.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        ax.set(title=fitting(name, 1.7), xlabel="client", ylabel="client")
        thin_ticks(ax, "x", [str(k) for k in clients], 8)
        thin_ticks(ax, "y", [str(k) for k in clients], 8)
    fig.colorbar(shown, ax=axes, label="linear CKA")
    return fig


@styled
def layer_means(means: Mapping[str, Mapping[str, float]], width: float = WIDTHS[2]) -> Figure:
    """Plot the mean similarity of every layer, one line per run (CCVR, Fig. 2 and 11)."""
    fig, (ax,) = panels(1, width, 1, 2.6)
    layers = list(dict.fromkeys(layer for values in means.values() for layer in values))
    for i, values in enumerate(means.values()):
        ax.plot([layers.index(layer) for layer in values], list(values.values()), **line(i))
    thin_ticks(ax, "x", [fitting(layer, 1.2, 7) for layer in layers], 24 if width > _NARROW else 12)
    ax.tick_params(axis="x", rotation=90 if len(layers) > 8 else 30)
    ax.set(ylabel="mean linear CKA", ylim=(0, 1.03))
    ax.grid(axis="y")
    legend_below(fig, ax.lines, list(means))
    return fig


@styled
def by_client_and_class(maps: Mapping[str, Matrix], clients: Sequence[int], width: float = WIDTHS[2]) -> Figure:
    """Plot label counts and classifier norms by client and class, one map each (CCVR, Fig. 3 and 12)."""
    fig, axes = panels(len(maps), width, min(len(maps), 3) if len(maps) != 4 else 2, 2.3)
    for ax, (name, matrix) in zip(axes, maps.items(), strict=True):
        shown = ax.imshow(matrix, aspect="auto", cmap="magma_r", interpolation="nearest")
        ax.set(title=fitting(name, 1.7), xlabel="class", ylabel="client")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        thin_ticks(ax, "y", [str(k) for k in clients], 10)
        fig.colorbar(shown, ax=ax)
    return fig


@styled
def norms_before_after(before: Matrix, after: Matrix, width: float = WIDTHS[2]) -> Figure:
    """Plot the norms of the global classifier before and after calibration (CCVR, Fig. 10)."""
    fig, (ax,) = panels(1, width, 1, 2.2)
    points = np.arange(len(before))
    bars = [
        ax.bar(points - 0.2, before, 0.4, color=COLORS[0]),
        ax.bar(
            points + 0.2, after, 0.4, color=COLORS[1], hatch="///" if len(points) <= 30 else "", edgecolor="white", lw=0
        ),
    ]
    ax.set(xlabel="class", ylabel="norm of the weight vector")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(fig, [bar[0] for bar in bars], ["before calibration", "after"])
    return fig


@styled
def separability(
    distance: Sequence[float], gains: Mapping[str, Sequence[float]], names: Sequence[str], width: float = WIDTHS[2]
) -> Figure:
    """Plot the gains of calibration against the separability of the classes (CCVR, Fig. 6).

    The marker is the kind of gain, the color the run; beyond seven runs the markers are hollow.
    """
    fig, (ax,) = panels(1, width, 1, 2.6)
    for i, x in enumerate(distance):
        color = COLORS[i % len(COLORS)]
        for marker, values in zip(MARKERS, gains.values(), strict=False):
            face = color if i < len(COLORS) else "white"
            ax.plot([x], [values[i]], ls="", marker=marker, color=color, ms=5, markerfacecolor=face)
    ax.axhline(0, color=INK, lw=0.5)
    ax.set(xlabel="mean sliced Wasserstein distance between classes", ylabel="gain (points)")
    ax.margins(0.08)
    ax.grid()
    kinds = [Line2D([], [], ls="", marker=marker, color=INK) for marker, _ in zip(MARKERS, gains, strict=False)]
    runs = [
        Line2D([], [], ls="-", lw=3 if i < len(COLORS) else 1, color=COLORS[i % len(COLORS)]) for i in range(len(names))
    ]
    legend_below(fig, [*kinds, *runs], [*gains, *names])
    return fig


@styled
def embeddings(points: Matrix, colors: Mapping[str, Matrix], names: Sequence[str], width: float = WIDTHS[2]) -> Figure:
    """Plot the same embedded samples, colored by class in several ways (CCVR, Fig. 5 and 13)."""
    fig, axes = panels(len(colors), width, 3 if width > _NARROW else 6)
    color = class_colors(len(names))
    shown: Any = None
    for ax, (title, label) in zip(axes, colors.items(), strict=True):
        shown = ax.scatter(points[:, 0], points[:, 1], c=label, s=3, lw=0, cmap=color, vmin=-0.5, vmax=len(names) - 0.5)
        ax.set_title(title)
        without_axes(ax)
    if len(names) > 20:
        fig.colorbar(shown, ax=axes, label="class")
    else:
        dots = [Line2D([], [], linestyle="", marker="o", color=color(i)) for i in range(len(names))]
        legend_below(fig, dots, names, "class")
    return fig


def class_colors(classes: int) -> Colormap:
    """Return colors of classes: as far as they can be told apart one by one, else along a scale."""
    if classes > 20:
        return colormaps["nipy_spectral"].resampled(classes)
    palette = colormaps["tab20" if classes > 10 else "tab10"]
    return ListedColormap([palette(i) for i in range(classes)])


@styled
def images(rows: Mapping[str, Mapping[str, Matrix]], width: float = WIDTHS[2]) -> Figure:
    """Plot images [c, h, w], each scaled to its own range, one row per sample (CCVR, Fig. 8 and 9)."""
    across = max(len(row) for row in rows.values())
    each = width / across
    fig = Figure(figsize=(width, (each + 0.1) * len(rows) + 0.15), layout="constrained")
    for number, (name, row) in enumerate(rows.items()):
        for column, (title, image) in enumerate(row.items()):
            ax = fig.add_subplot(len(rows), across, number * across + column + 1)
            low, high = float(image.min()), float(image.max())
            scaled = (image - low) / max(high - low, 1e-12)
            ax.imshow(scaled.transpose(1, 2, 0) if len(image) == 3 else scaled[0], cmap="gray")
            without_axes(ax)
            if number == 0:
                ax.set_title(title)
            if column == 0:
                ax.set_ylabel(name)
    return fig


@styled
def amounts(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    before: Mapping[str, float],
    xlabel: str,
    width: float = WIDTHS[2],
) -> Figure:
    """Plot the accuracy after calibration against how much it was done with (CCVR, Fig. 4, 7 and 14).

    Args:
        curves: Amounts and accuracies by run.
        before: Accuracy of each run before calibration, drawn as a thin line.
        xlabel: What the amounts are.
        width: Width in inches.
    """
    fig, (ax,) = panels(1, width, 1, 2.5)
    for i, (name, (x, y)) in enumerate(curves.items()):
        ax.plot(x, y, **line(i))
        ax.axhline(before[name], color=COLORS[i % len(COLORS)], lw=0.6)
    ax.set(xlabel=xlabel, ylabel="accuracy (%)")
    log_scale(ax)
    ax.grid()
    legend_below(
        fig,
        [*ax.lines[::2], Line2D([], [], color=INK, lw=0.6)],
        [*curves, "before calibration"],
    )
    return fig
