"""Figures of the analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedhead.report.plots import COLORS

Matrix = NDArray[Any]


def _grid(panels: int, size: float = 3.0, height: float | None = None) -> tuple[Figure, list[Any]]:
    fig = Figure(figsize=(size * panels + 0.6, height or size), layout="constrained")
    return fig, [fig.add_subplot(1, panels, i + 1) for i in range(panels)]


def heat_maps(matrices: Mapping[str, Matrix], clients: Sequence[int]) -> Figure:
    """Plot pairwise similarities of clients, one map per layer (CCVR, Fig. 1)."""
    fig, axes = _grid(len(matrices))
    shown: Any = None
    for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
        shown = ax.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        ax.set(title=name, xlabel="client", ylabel="client")
        ax.set_xticks(range(len(clients)), [str(k) for k in clients], fontsize=7)
        ax.set_yticks(range(len(clients)), [str(k) for k in clients], fontsize=7)
    fig.colorbar(shown, ax=axes, label="linear CKA")
    return fig


def layer_means(means: Mapping[str, Mapping[str, float]]) -> Figure:
    """Plot the mean similarity of every layer, one line per run (CCVR, Fig. 2 and 11)."""
    fig, (ax,) = _grid(1, 6.4, 3.8)
    for i, (run, values) in enumerate(means.items()):
        ax.plot(list(values), list(values.values()), "o-", color=COLORS[i % len(COLORS)], label=run)
    ax.set(ylabel="mean linear CKA", ylim=(0, 1.02))
    ax.tick_params(axis="x", rotation=30)
    ax.legend(frameon=False)
    return fig


def by_client_and_class(maps: Mapping[str, Matrix], clients: Sequence[int]) -> Figure:
    """Plot label counts and classifier norms by client and class, one map each (CCVR, Fig. 3 and 12)."""
    fig, axes = _grid(len(maps), 3.4)
    for ax, (name, matrix) in zip(axes, maps.items(), strict=True):
        shown = ax.imshow(matrix, aspect="auto", cmap="magma_r")
        ax.set(title=name, xlabel="class", ylabel="client")
        ax.set_yticks(range(len(clients)), [str(k) for k in clients], fontsize=7)
        fig.colorbar(shown, ax=ax)
    return fig


def norms_before_after(before: Matrix, after: Matrix) -> Figure:
    """Plot the norms of the global classifier before and after calibration (CCVR, Fig. 10)."""
    fig, (ax,) = _grid(1, 6.4, 3.4)
    points = np.arange(len(before))
    ax.bar(points - 0.2, before, 0.4, color=COLORS[0], label="before calibration")
    ax.bar(points + 0.2, after, 0.4, color=COLORS[1], label="after")
    ax.set(xlabel="class", ylabel="norm of the weight vector", ylim=(0, 1.25 * max(before.max(), after.max())))
    ax.legend(frameon=False, ncols=2, loc="upper center")
    return fig


def separability(distance: Sequence[float], gains: Mapping[str, Sequence[float]], names: Sequence[str]) -> Figure:
    """Plot the gains of calibration against the separability of the classes, one point per run (CCVR, Fig. 6)."""
    fig, (ax,) = _grid(1, 5.6, 3.8)
    for i, (label, values) in enumerate(gains.items()):
        ax.scatter(distance, values, color=COLORS[i], label=label)
    for x, y, name in zip(distance, next(iter(gains.values())), names, strict=True):
        ax.annotate(name, (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points")
    ax.set(xlabel="mean sliced Wasserstein distance between classes", ylabel="gain (points)")
    ax.legend(frameon=False)
    return fig


def embeddings(points: Matrix, colors: Mapping[str, Matrix], names: Sequence[str]) -> Figure:
    """Plot the same embedded samples, colored by class in several ways (CCVR, Fig. 5 and 13)."""
    fig, axes = _grid(len(colors), 3.6)
    many = len(names) > 20  # more than a legend can distinguish
    palette = colormaps["nipy_spectral" if many else "tab20" if len(names) > 10 else "tab10"]
    color = palette.resampled(len(names)) if many else ListedColormap([palette(i) for i in range(len(names))])
    shown: Any = None
    for ax, (title, label) in zip(axes, colors.items(), strict=True):
        shown = ax.scatter(*points.T, c=label, s=4, cmap=color, vmin=-0.5, vmax=len(names) - 0.5)
        ax.set(title=title, xticks=[], yticks=[])
    if many:
        fig.colorbar(shown, ax=axes, label="class")
    else:
        dots = [Line2D([], [], linestyle="", marker="o", color=color(i)) for i in range(len(names))]
        fig.legend(dots, names, title="class", loc="outside right center", frameon=False, fontsize=8)
    return fig


def images(images: Mapping[str, Matrix]) -> Figure:
    """Plot images [c, h, w], each scaled to its own range (CCVR, Fig. 8 and 9)."""
    fig, axes = _grid(len(images), 2.0)
    for ax, (title, image) in zip(axes, images.items(), strict=True):
        low, high = float(image.min()), float(image.max())
        scaled = (image - low) / max(high - low, 1e-12)
        ax.imshow(scaled.transpose(1, 2, 0) if len(image) == 3 else scaled[0], cmap="gray")
        ax.set_title(title, fontsize=8)
        ax.set_axis_off()
    return fig
