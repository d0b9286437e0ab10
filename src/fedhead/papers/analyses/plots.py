"""Figures of the analyses: drift and calibration (CCVR), geometry (FedETF), personal models (FedClassAvg)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedhead.report.style import (
    COLORS,
    INK,
    MARKERS,
    WIDTHS,
    Figure,
    across,
    fitting,
    legend_below,
    line,
    log_scale,
    panels,
    styled,
    thin_ticks,
    without_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[Any]
_NARROW = 4.5  # inches; narrower figures have the width of one column
COLLAPSE = {
    "nc1": "NC1: variance within\nover that between classes",
    "nc2": "NC2: error of the\nprototypes' simplex",
    "nc3": "NC3: cosine of classifier\nand prototypes",
    "prototype_consistency": "consistency of the\nclients' prototypes",
    "classifier_consistency": "consistency of the\nclients' classifiers",
}


# -- parts that several figures share ---------------------------------------------------------------------------------
def _numbered(count: int) -> list[str]:
    return [str(i) for i in range(count)]


def _scatter(ax: Axes, points: Array, labels: Array, count: int, size: float = 3) -> Any:
    """Draw embedded points, colored by class or client."""
    without_axes(ax)
    x, y = np.asarray(points).T
    return ax.scatter(x, y, c=labels, s=size, lw=0, cmap=class_colors(count), vmin=-0.5, vmax=count - 0.5)


def _color_scale(shown: Any, ax: Axes, label: str, count: int, width: float) -> None:
    figure = ax.get_figure()
    assert isinstance(figure, Figure), "axes that were just drawn have one"
    scale = figure.colorbar(shown, ax=ax, label=label)
    thin_ticks(scale.ax, "y", _numbered(count), 10 if width > WIDTHS[1] else 5)


def _by_name(values: Mapping[str, Mapping[str, float]], ylabel: str, width: float) -> tuple[Figure, Axes, list[str]]:
    """Draw one line per run over categories, such as layers."""
    fig, (ax,) = panels(1, width, 1, 2.6)
    names = list(dict.fromkeys(name for each in values.values() for name in each))
    for i, each in enumerate(values.values()):
        ax.plot([names.index(name) for name in each], list(each.values()), **line(i))
    thin_ticks(ax, "x", [fitting(name, 1.2, 7) for name in names], 24 if width > _NARROW else 12)
    ax.set(ylabel=ylabel)
    ax.grid(axis="y")
    legend_below(fig, ax.lines, list(values))
    return fig, ax, names


def class_colors(classes: int) -> Colormap:
    """Return distinct colors for few classes, else a color scale."""
    if classes > 20:
        return colormaps["nipy_spectral"].resampled(classes)
    palette = colormaps["tab20" if classes > 10 else "tab10"]
    return ListedColormap([palette(i) for i in range(classes)])


# -- drift and calibration (CCVR) -------------------------------------------------------------------------------------
@styled
def heat_maps(matrices: Mapping[str, Array], clients: Sequence[int], width: float = WIDTHS[2]) -> Figure:
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
    fig, ax, layers = _by_name(means, "mean linear CKA", width)
    ax.tick_params(axis="x", rotation=90 if len(layers) > 8 else 30)
    ax.set(ylim=(0, 1.03))
    return fig


@styled
def by_client_and_class(maps: Mapping[str, Array], clients: Sequence[int], width: float = WIDTHS[2]) -> Figure:
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
def norms_before_after(before: Array, after: Array, width: float = WIDTHS[2]) -> Figure:
    """Plot the norms of the global classifier before and after calibration (CCVR, Fig. 10)."""
    fig, (ax,) = panels(1, width, 1, 2.2)
    places = np.arange(len(before))
    hatch = "///" if len(places) <= 30 else ""
    bars = [
        ax.bar(places - 0.2, before, 0.4, color=COLORS[0]),
        ax.bar(places + 0.2, after, 0.4, color=COLORS[1], hatch=hatch, edgecolor="white", lw=0),
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

    Markers show the kind of gain and colors the run. From the eighth run on colors repeat with hollow markers.
    """
    fig, (ax,) = panels(1, width, 1, 2.6)
    for i, x in enumerate(distance):
        color = COLORS[i % len(COLORS)]
        face = color if i < len(COLORS) else "white"
        for marker, values in zip(MARKERS, gains.values(), strict=False):
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
def embeddings(points: Array, colors: Mapping[str, Array], names: Sequence[str], width: float = WIDTHS[2]) -> Figure:
    """Plot the same embedded samples, colored by class in several ways (CCVR, Fig. 5 and 13)."""
    fig, axes = panels(len(colors), width, 3 if width > _NARROW else 6)
    shown: Any = None
    for ax, (title, labels) in zip(axes, colors.items(), strict=True):
        shown = _scatter(ax, points, labels, len(names))
        ax.set_title(title)
    if len(names) > 20:
        fig.colorbar(shown, ax=axes, label="class")
    else:
        color = class_colors(len(names))
        dots = [Line2D([], [], linestyle="", marker="o", color=color(i)) for i in range(len(names))]
        legend_below(fig, dots, names, "class")
    return fig


@styled
def images(rows: Mapping[str, Mapping[str, Array]], width: float = WIDTHS[2]) -> Figure:
    """Plot images [c, h, w], each scaled to its own range, one row per sample (CCVR, Fig. 8 and 9)."""
    columns = max(len(row) for row in rows.values())
    fig = Figure(figsize=(width, (width / columns + 0.1) * len(rows) + 0.15), layout="constrained")
    for i, (name, row) in enumerate(rows.items()):
        for j, (title, image) in enumerate(row.items()):
            ax = fig.add_subplot(len(rows), columns, i * columns + j + 1)
            low, high = float(image.min()), float(image.max())
            scaled = (image - low) / max(high - low, 1e-12)
            ax.imshow(scaled.transpose(1, 2, 0) if len(image) == 3 else scaled[0], cmap="gray")
            without_axes(ax)
            if i == 0:
                ax.set_title(title)
            if j == 0:
                ax.set_ylabel(name)
    return fig


@styled
def amounts(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    before: Mapping[str, float],
    xlabel: str,
    width: float = WIDTHS[2],
) -> Figure:
    """Plot the accuracy after calibration against the number of features (CCVR, Fig. 4, 7 and 14).

    Args:
        curves: Amounts and accuracies by run.
        before: Accuracy of each run before calibration, drawn as a thin line.
        xlabel: Label of the amounts.
        width: Width in inches.
    """
    fig, (ax,) = panels(1, width, 1, 2.5)
    for i, (name, (x, y)) in enumerate(curves.items()):
        ax.plot(x, y, **line(i))
        ax.axhline(before[name], color=COLORS[i % len(COLORS)], lw=0.6)
    ax.set(xlabel=xlabel, ylabel="accuracy (%)")
    log_scale(ax)
    ax.grid()
    legend_below(fig, [*ax.lines[::2], Line2D([], [], color=INK, lw=0.6)], [*curves, "before calibration"])
    return fig


# -- the classifier's geometry and fine-tuning (FedETF) ---------------------------------------------------------------
@styled
def collapse(runs: Mapping[str, Sequence[Mapping[str, float]]], width: float = WIDTHS[2]) -> Figure:
    """Plot each metric over the rounds, one panel per metric, one line per run (FedETF, Fig. 5).

    Only points of consecutive rounds are connected.
    """
    fig, axes = panels(len(COLLAPSE), width, 3, 1.9)
    for ax, (key, title) in zip(axes, COLLAPSE.items(), strict=True):
        for i, rows in enumerate(runs.values()):
            points = np.array([(row["round"], row[key]) for row in rows if key in row]).reshape(-1, 2)
            gaps = np.flatnonzero(np.diff(points[:, 0]) > 1) + 1
            ax.plot(*np.insert(points, gaps, np.nan, axis=0).T, **line(i))
        ax.set(xlabel="round", title=title)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        ax.grid()
    legend_below(fig, axes[0].lines, list(runs))
    return fig


@styled
def classifiers(runs: Mapping[str, tuple[Array, Array, Array]], width: float = WIDTHS[2]) -> Figure:
    """Plot the cosines as a map and the embedded vectors, colored by class, one row per run (FedETF, Fig. 1)."""
    fig = Figure(figsize=(width, 0.42 * width * len(runs) + 0.2), layout="constrained")
    for i, (name, (cosines, points, labels)) in enumerate(runs.items()):
        left = fig.add_subplot(len(runs), 2, 2 * i + 1)
        shown = left.imshow(cosines, vmin=-1, vmax=1, cmap="coolwarm", interpolation="nearest")
        left.set(title=fitting(name, 0.42 * width), xlabel="client", ylabel="client")
        thin_ticks(left, "x", _numbered(len(cosines)), 8)
        thin_ticks(left, "y", _numbered(len(cosines)), 8)
        fig.colorbar(shown, ax=left, label="mean cosine")
        right = fig.add_subplot(len(runs), 2, 2 * i + 2)
        classes = int(labels.max()) + 1
        _color_scale(_scatter(right, points, labels, classes, size=8), right, "class", classes, width)
        right.set_title("classifier vectors")
    return fig


@styled
def steps(runs: Mapping[str, Mapping[str, float]], width: float = WIDTHS[2]) -> Figure:
    """Plot the clients' mean accuracy after each step of fine-tuning, one line per run (FedETF, Fig. 6b)."""
    fig, ax, _ = _by_name(runs, "personal accuracy (%)", width)
    ax.tick_params(axis="x", rotation=90)
    return fig


@styled
def dimension(points: Mapping[int, Mapping[str, float]], width: float = WIDTHS[2]) -> Figure:
    """Plot the accuracy and the errors of neural collapse against the dimension of the features (FedETF, Fig. 6a)."""
    fig, axes = panels(2, width, 2, 2.3)
    x = sorted(points)
    for i, (ax, key) in enumerate(((axes[0], "accuracy"), (axes[1], "nc1"), (axes[1], "nc2"))):
        ax.plot(x, [points[d][key] for d in x], **line(i))
    axes[0].set(ylabel="accuracy (%)")
    axes[1].set(ylabel="error of neural collapse")
    for ax in axes:
        ax.set(xlabel="dimension of the features")
        log_scale(ax)
        ax.grid()
    legend_below(fig, axes[1].lines, ["NC1", "NC2"])
    return fig


# -- clients' own models (FedClassAvg) --------------------------------------------------------------------------------
@styled
def client_embeddings(runs: Mapping[str, tuple[Array, Array, Array]], classes: int, width: float = WIDTHS[2]) -> Figure:
    """Plot embedded features, colored by class and by client, one row per run (FedClassAvg, Fig. 8)."""
    fig = Figure(figsize=(width, 0.42 * width * len(runs)), layout="constrained")
    for i, (name, (points, y, client)) in enumerate(runs.items()):
        colorings = (("class", y, classes), ("client", client, int(client.max()) + 1))
        for j, (title, labels, count) in enumerate(colorings):
            ax = fig.add_subplot(len(runs), 2, 2 * i + j + 1)
            _color_scale(_scatter(ax, points, labels, count), ax, title, count, width)
            if j == 0:
                ax.set_ylabel(fitting(name, 0.36 * width))
    return fig


@styled
def rank_maps(
    maps: Mapping[str, tuple[Array, Sequence[int]]], same: Sequence[str] = (), width: float = WIDTHS[2]
) -> Figure:
    """Plot the ranks of the features' conductances by client, one panel per run (FedClassAvg, Fig. 9).

    Features keep the classifier's order, since a plot sorted by rank would show a gradient for any run.

    Args:
        maps: Ranks [clients, features] and the clients by run.
        same: Runs in which all clients use the same model, so that their ranks are equal.
        width: Width in inches.
    """
    fig, axes = panels(len(maps), width, 3, 3.0 if len(maps) <= 3 else 2.4)
    room = width / across(len(maps), width, 3) - 0.8
    for ax, (name, (ranks, clients)) in zip(axes, maps.items(), strict=True):
        shown = ax.imshow(ranks.T, aspect="auto", cmap="viridis", interpolation="nearest")
        title = fitting(name, room) + ("\n(one model for all clients)" if name in same else "")
        ax.set(title=title, xlabel="client", ylabel="feature")
        thin_ticks(ax, "x", [str(k) for k in clients], 10)
        fig.colorbar(shown, ax=ax, label="rank of its conductance")
    return fig


@styled
def epoch_curves(runs: Mapping[str, Mapping[str, Sequence[float]]], width: float = WIDTHS[2]) -> Figure:
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
