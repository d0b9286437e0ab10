"""Figures of the analyses of clients with their own models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedhead.report.plots import COLORS

Array = NDArray[Any]


def embeddings(runs: Mapping[str, tuple[Array, Array, Array]], classes: int) -> Figure:
    """Plot embedded features, colored by class and by client, one row per run (FedClassAvg, Fig. 8)."""
    fig = Figure(figsize=(8, 3.6 * len(runs)), layout="constrained")
    for row, (name, (points, y, client)) in enumerate(runs.items()):
        colorings = (("class", y, classes), ("client", client, int(client.max()) + 1))
        for column, (title, color, colors) in enumerate(colorings):
            ax = fig.add_subplot(len(runs), 2, 2 * row + column + 1)
            x, height = points.T
            image = ax.scatter(x, height, c=color, s=4, cmap="nipy_spectral", vmin=-0.5, vmax=colors - 0.5)
            ax.set(title=f"{name}, by {title}", xticks=[], yticks=[])
            fig.colorbar(image, ax=ax, label=title)
    return fig


def rank_maps(maps: Mapping[str, tuple[Array, Sequence[int]]]) -> Figure:
    """Plot the ranks of the features' conductances by client, one panel per run (FedClassAvg, Fig. 9).

    Features are sorted by their mean rank, so that agreement shows as one gradient over all clients.
    """
    fig = Figure(figsize=(4.2 * len(maps), 5), layout="constrained")
    for i, (name, (ranks, clients)) in enumerate(maps.items()):
        ax = fig.add_subplot(1, len(maps), i + 1)
        order = np.argsort(ranks.mean(axis=0), kind="stable")
        image = ax.imshow(ranks[:, order].T, aspect="auto", cmap="viridis", interpolation="nearest")
        ax.set(title=name, xlabel="client", ylabel="feature, by mean rank")
        ax.set_xticks(range(len(clients)), [str(k) for k in clients], fontsize=7)
        fig.colorbar(image, ax=ax, label="rank")
    return fig


def curves(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Plot the clients' mean accuracy over local epochs with its deviation over clients (FedClassAvg, Fig. 4 to 7)."""
    fig = Figure(figsize=(6.4, 3.8), layout="constrained")
    ax = fig.add_subplot()
    for i, (name, run) in enumerate(runs.items()):
        epochs, mean, deviation = (np.asarray(run[key]) for key in ("epochs", "mean", "deviation"))
        color = COLORS[i % len(COLORS)]
        ax.plot(epochs, mean, "o-", markersize=3, color=color, label=name)
        top = np.minimum(mean + deviation, 100)
        ax.fill_between(epochs, mean - deviation, top, color=color, alpha=0.15, linewidth=0)
    ax.set(xlabel="local epochs", ylabel="accuracy of the clients (%)")
    ax.legend(frameon=False)
    return fig
