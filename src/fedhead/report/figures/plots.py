"""Figures: learning curves with a band over seeds, bubble plots of partitions, our results against published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedhead.report.histories import aligned
from fedhead.report.metric_names import metric_label
from fedhead.report.style import (
    COLORS,
    DASHES,
    INK,
    WIDTHS,
    Figure,
    fitting,
    legend_below,
    line,
    log_scale,
    styled,
    thin_ticks,
)
from fedhead.report.style import save as save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedhead.report.page.content import Entry

_MANY = 40  # clients or classes beyond which bubbles become a heat map


@styled
def curves(entries: Sequence[Entry], metric: str = "accuracy", width: float = WIDTHS[2]) -> Figure:
    """Plot a metric over the rounds: the mean over seeds, with a band of one standard deviation.

    Each unfinished run is a separate thin line, marked as unfinished in the legend.

    Args:
        entries: Methods by setting, see `fedhead.report.page.content.Content.methods`.
        metric: "accuracy", "personal", "train_loss", "test_loss" or a metric of the runs.
        width: Width in inches.
    """
    fig, ax = _blank(width, 2.7 if width > 4 else 2.2)
    for i, entry in enumerate(entries):
        lines = [(entry.name, [run.rows for run in entry.runs], 1.3)]
        for run in entry.unfinished:
            lines.append((f"{entry.name}, seed {run.recipe.seed}, {run.status}", [run.rows], 0.6))
        for label, histories, thickness in lines:
            rounds, values = aligned(histories, metric)
            if not len(rounds):
                continue
            mean, look = values.mean(axis=0), line(i)
            look["marker"] = look["marker"] if len(rounds) == 1 else ""
            ax.plot(rounds, mean, lw=thickness, label=label, **look)
            if len(values) > 1:
                deviation = values.std(axis=0, ddof=1)
                ax.fill_between(rounds, mean - deviation, mean + deviation, color=look["color"], alpha=0.18, lw=0)
    _finish_curves(fig, ax, metric, ax.lines)
    return fig


def _finish_curves(fig: Figure, ax: Axes, metric: str, named: Sequence[Line2D]) -> None:
    ax.set(xlabel="round", ylabel=metric_label(metric))
    ax.grid()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if named:  # the legend is below, so that long labels never cover the curves
        legend_below(fig, named, [str(drawn.get_label()) for drawn in named])


@styled
def curve(rounds: Sequence[int], values: Sequence[float], name: str, after: Mapping[str, float]) -> Figure:
    """Plot one metric of one run over its rounds, and its value after each stage as dashed lines.

    Args:
        rounds: The rounds.
        values: Value of the metric in each round.
        name: Name of the metric.
        after: Value of the metric after each stage.
    """
    fig, ax = _blank(6.0, 3.4)
    fig.patch.set(facecolor="white", alpha=1)
    ax.plot(rounds, values, color=COLORS[0], marker="o" if len(rounds) == 1 else "")
    for i, (stage, value) in enumerate(after.items(), 1):
        ax.axhline(value, color=COLORS[i % len(COLORS)], ls=DASHES[i % len(DASHES)], lw=1.0, label=f"after {stage}")
    _finish_curves(fig, ax, name, ax.lines[1:])
    return fig


@styled
def bubbles(
    counts: NDArray[np.int64], names: Sequence[str] | None = None, title: str = "", width: float = WIDTHS[2]
) -> Figure:
    """Plot a partition as in the papers: one bubble per client and class, its area proportional to the samples.

    Beyond 40 clients or classes it is a heat map.

    Args:
        counts: Samples per client and class, [clients, classes].
        names: Class names.
        title: Title of the plot.
        width: Largest width in inches; few clients take less.
    """
    clients, classes = counts.shape
    if max(clients, classes) > _MANY:
        return _heat_map(counts, names, title, width)
    step = min(0.3, (width - 1.9) / clients)
    fig, ax = _blank(max(1.9 + step * clients, 3.3), 0.75 + max(step, 0.14) * classes)
    k, c = np.nonzero(counts)
    most = max(int(counts.max()), 1)
    diameter = 72 * 0.92 * min(step, 0.3)
    ax.scatter(k, c, s=counts[k, c] / most * diameter**2, color=COLORS[0], alpha=0.75, lw=0)
    ax.set(xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3))
    ax.set_title(fitting(title, fig.get_figwidth() - 1.2))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    _name_classes(ax, names, classes)
    ax.grid(alpha=0.15)
    ax.set_axisbelow(True)
    sizes = _sizes(most)
    dots = [
        Line2D([], [], ls="", marker="o", ms=diameter * (size / most) ** 0.5, color=COLORS[0], alpha=0.75, mew=0)
        for size in sizes
    ]
    fig.legend(dots, [f"{size:,}" for size in sizes], title="samples", loc="outside right center", labelspacing=0.9)
    return fig


def _sizes(most: int) -> list[int]:
    """Return sample counts for a legend: `most`, a quarter and a sixteenth of it, rounded down to one digit."""
    out = []
    for share in (1, 4, 16):
        size = max(most // share, 1)
        digit = 10 ** (len(str(size)) - 1)
        out.append(size // digit * digit)
    return list(dict.fromkeys(out))


def _name_classes(ax: Axes, names: Sequence[str] | None, classes: int) -> None:
    shown = [fitting(name, 1.1, 7) for name in names] if names is not None else [str(c) for c in range(classes)]
    thin_ticks(ax, "y", shown, _MANY if names is not None else 20)


def _heat_map(counts: NDArray[np.int64], names: Sequence[str] | None, title: str, width: float) -> Figure:
    classes = counts.shape[1]
    fig, ax = _blank(width, min(max(1.0 + 0.14 * classes, 2.4), 8.0))
    shown = ax.imshow(counts.T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest")
    ax.set(xlabel="client", ylabel="class")
    ax.set_title(fitting(title, width - 1.2))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if classes <= _MANY:
        _name_classes(ax, names, classes)
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    fig.colorbar(shown, ax=ax, label="samples")
    return fig


@styled
def against(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Plot our results against the published ones, one dot per cell, colored by group, and the diagonal."""
    fig, ax = _blank(5.0, 5.0)
    ends = [value for points in pairs.values() for pair in points for value in pair] or [0.0, 100.0]
    low, high = min(ends) - 2, max(ends) + 2
    ax.plot([low, high], [low, high], color=INK, lw=0.8, alpha=0.5)
    for i, (name, points) in enumerate(pairs.items()):
        x, y = zip(*points, strict=True)
        ax.plot(x, y, "o", ms=4, color=COLORS[i % len(COLORS)], alpha=0.8, mew=0, label=f"{name} ({len(points)})")
    ax.set(xlabel="published (%)", ylabel="ours (%)", xlim=(low, high), ylim=(low, high), aspect="equal")
    ax.grid()
    if pairs:
        ax.legend()
    return fig


@styled
def accuracy_by_bytes(points: Sequence[tuple[str, float, float]]) -> Figure:
    """Plot accuracies in per cent against the bytes that a client sends, one point each with its name."""
    fig, ax = _blank(WIDTHS[1], 2.4)
    for i, (name, sent, accuracy) in enumerate(points):
        ax.plot([sent / 1e3], [accuracy], **{**line(i), "linestyle": ""}, label=name)
    log_scale(ax)
    ax.set(xlabel="kB that a client sends", ylabel="accuracy (%)")
    ax.legend()
    return fig


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    fig = Figure(figsize=(width, height), layout="constrained")
    fig.patch.set_alpha(0)
    ax = fig.add_subplot()
    ax.patch.set_alpha(0)
    return fig, ax
