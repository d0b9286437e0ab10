"""Figures of the analyses of clients with their own models (FedClassAvg)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedhead.papers.analyses.plots import class_colors
from fedhead.report.style import (
    WIDTHS,
    across,
    fitting,
    legend_below,
    line,
    panels,
    styled,
    thin_ticks,
    without_axes,
)

Array = NDArray[Any]


@styled
def embeddings(runs: Mapping[str, tuple[Array, Array, Array]], classes: int, width: float = WIDTHS[2]) -> Figure:
    """Plot embedded features, colored by class and by client, one row per run (FedClassAvg, Fig. 8)."""
    fig = Figure(figsize=(width, 0.42 * width * len(runs)), layout="constrained")
    for row, (name, (points, y, client)) in enumerate(runs.items()):
        colorings = (("class", y, classes), ("client", client, int(client.max()) + 1))
        for column, (title, color, colors) in enumerate(colorings):
            ax = fig.add_subplot(len(runs), 2, 2 * row + column + 1)
            x, height = points.T
            shown = ax.scatter(x, height, c=color, s=3, lw=0, cmap=class_colors(colors), vmin=-0.5, vmax=colors - 0.5)
            without_axes(ax)
            if column == 0:
                ax.set_ylabel(fitting(name, 0.36 * width))
            scale = fig.colorbar(shown, ax=ax, label=title)
            thin_ticks(scale.ax, "y", [str(c) for c in range(colors)], 10 if width > WIDTHS[1] else 5)
    return fig


@styled
def rank_maps(
    maps: Mapping[str, tuple[Array, Sequence[int]]], same: Sequence[str] = (), width: float = WIDTHS[2]
) -> Figure:
    """Plot the ranks of the features' conductances by client, one panel per run (FedClassAvg, Fig. 9).

    Features are in the classifier's own order: sorted by their ranks, any run would show a gradient.

    Args:
        maps: Ranks [clients, features] and the clients by run.
        same: Runs in which all clients use one model, so that all columns are equal.
        width: Width in inches.
    """
    fig, axes = panels(len(maps), width, 3, 3.0 if len(maps) <= 3 else 2.4)
    room = width / across(len(maps), width, 3) - 0.8
    for ax, (name, (ranks, clients)) in zip(axes, maps.items(), strict=True):
        shown = ax.imshow(ranks.T, aspect="auto", cmap="viridis", interpolation="nearest")
        lines = [fitting(name, room)] + (["(one model for all clients)"] if name in same else [])
        ax.set(title="\n".join(lines), xlabel="client", ylabel="feature")
        thin_ticks(ax, "x", [str(k) for k in clients], 10)
        fig.colorbar(shown, ax=ax, label="rank of its conductance")
    return fig


@styled
def curves(runs: Mapping[str, Mapping[str, Sequence[float]]], width: float = WIDTHS[2]) -> Figure:
    """Plot the clients' mean accuracy over local epochs with its deviation over clients (FedClassAvg, Fig. 4 to 7)."""
    fig, (ax,) = panels(1, width, 1, 2.6)
    for i, run in enumerate(runs.values()):
        epochs, mean, deviation = (np.asarray(run[key]) for key in ("epochs", "mean", "deviation"))
        look = line(i)
        ax.plot(epochs, mean, markevery=max(1, len(epochs) // 12), **look)
        top = np.minimum(mean + deviation, 100)
        ax.fill_between(epochs, mean - deviation, top, color=look["color"], alpha=0.12, linewidth=0)
    ax.set(xlabel="local epochs", ylabel="accuracy of the clients (%)")
    ax.grid()
    legend_below(fig, ax.lines, list(runs))
    return fig
