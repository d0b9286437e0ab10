"""Figures: learning curves with a band over seeds, bubble plots of partitions, our results against published ones."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedhead.core.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedhead.report.tables import Group

# Medium lightness, readable on white and on black; lines also differ in their dashes.
COLORS = ("#3b82f6", "#e08a00", "#10a37f", "#ef4444", "#a855f7", "#0ea5b7", "#ec4899", "#7c9a0e")
DASHES = ("-", "--", "-.", ":")
_LEGEND_WIDTH = 90  # characters that fit in one line of a figure of 7 inches
_AXES = {
    "accuracy": "accuracy (%)",
    "personal": "personal accuracy (%)",
    "train_loss": "training loss",
    "test_loss": "test loss",
}
_INK = "#123456"  # placeholder for the text color until the figure is written
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "sans-serif",
    "svg.fonttype": "none",  # keep text as text: searchable, in the page's font
    "svg.hashsalt": "fedhead",  # reproducible files
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def curves(groups: Sequence[Group], metric: str = "accuracy") -> Figure:
    """Plot a metric over the rounds: the mean over seeds, with a band of one standard deviation.

    Runs that did not finish are separate lines, thin and named as such.

    Args:
        groups: Groups of runs, see `fedhead.report.tables.group_by_seed`.
        metric: "accuracy", "personal", "train_loss" or "test_loss".
    """
    fig, ax = _blank(7.0, 3.8)
    legend_lines = 0  # lines of text in the legend
    for i, g in enumerate(groups):
        color, dash = COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]
        lines = [(g.label, [run.rows for run in g.runs], 1.8)]
        for run in g.unfinished:
            lines.append(
                (f"{g.label}, seed {run.recipe.seed}, {run.state.partition(' ')[0].strip(',')}", [run.rows], 0.8)
            )
        for label, histories, width in lines:
            rounds, values = _aligned(histories, metric)
            if not len(rounds):
                continue
            mean = values.mean(axis=0)
            label = textwrap.fill(label, _LEGEND_WIDTH)
            legend_lines += 1 + label.count("\n")
            ax.plot(rounds, mean, dash, color=color, lw=width, label=label, marker="o" if len(rounds) == 1 else "")
            if len(values) > 1:
                deviation = values.std(axis=0, ddof=1)
                ax.fill_between(rounds, mean - deviation, mean + deviation, color=color, alpha=0.18, lw=0)
    ax.set(xlabel="round", ylabel=_AXES[metric])
    ax.grid(color=_INK, alpha=0.12, lw=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if ax.lines:  # below the curves, so that it never hides them, however long the labels are
        fig.set_figheight(fig.get_figheight() + 0.18 * legend_lines)
        fig.legend(loc="outside lower left", frameon=False, labelcolor=_INK, fontsize=9)
    return fig


def curve(rounds: Sequence[int], values: Sequence[float], name: str, after: Mapping[str, float]) -> Figure:
    """Plot one metric of one run over its rounds, and as dashed lines what it is after each stage.

    Args:
        rounds: The rounds.
        values: The metric in each.
        name: Its name.
        after: Its value after each stage.
    """
    fig, ax = _blank(6.0, 3.4)
    fig.patch.set(facecolor="white", alpha=1)
    ax.plot(rounds, values, color=COLORS[0], lw=1.8, marker="o" if len(rounds) == 1 else "")
    for i, (stage, value) in enumerate(after.items(), 1):
        ax.axhline(value, color=COLORS[i % len(COLORS)], ls="--", lw=1.2, label=f"after {stage}")
    ax.set(xlabel="round", ylabel=f"{name} (%)" if name in ("accuracy", "personal") else name)
    ax.grid(alpha=0.15, lw=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if after:
        ax.legend(frameon=False, fontsize=9)
    return fig


def _aligned(histories: list[list[dict[str, Any]]], metric: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rounds in which every run has the metric, and its values [runs, rounds]."""
    found = [{r["round"]: r[metric] for r in rows if r.get(metric) is not None} for rows in histories]
    found = [f for f in found if f]
    common = sorted(set.intersection(*(set(f) for f in found))) if found else []
    return np.array(common), np.array([[f[r] for r in common] for f in found])


def bubbles(counts: NDArray[np.int64], names: Sequence[str] | None = None, title: str = "") -> Figure:
    """Plot a partition as in the papers: one bubble per client and class, its area proportional to the samples.

    Args:
        counts: Samples per client and class, [clients, classes].
        names: Class names.
        title: Title of the plot.
    """
    clients, classes = counts.shape
    fig, ax = _blank(min(2.2 + 0.38 * clients, 14.0), min(1.4 + 0.3 * classes, 12.0))
    k, c = np.nonzero(counts)
    diameter = min(72 * 0.34, 72 * (fig.get_figwidth() - 1.4) / clients, 72 * (fig.get_figheight() - 1.0) / classes)
    area = counts[k, c] / max(int(counts.max()), 1) * diameter**2
    ax.scatter(k, c, s=area, color=COLORS[0], alpha=0.75, lw=0)
    ax.set(xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3), title=title)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if names is not None and classes <= 30:
        ax.set_yticks(range(classes), [name[:24].replace("$", r"\$") for name in names])  # no formulas
    elif classes <= 30:
        ax.set_yticks(range(classes))
    ax.grid(color=_INK, alpha=0.08, lw=0.6)
    ax.set_axisbelow(True)
    return fig


def against(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Our results against the published ones, one dot per cell, colored by group, and the diagonal."""
    fig, ax = _blank(5.0, 5.0)
    ends = [value for found in pairs.values() for pair in found for value in pair] or [0.0, 100.0]
    low, high = min(ends) - 2, max(ends) + 2
    ax.plot([low, high], [low, high], color=_INK, lw=0.8, alpha=0.5)
    for i, (name, found) in enumerate(pairs.items()):
        x, y = zip(*found, strict=True)
        ax.plot(x, y, "o", ms=4, color=COLORS[i % len(COLORS)], alpha=0.8, mew=0, label=f"{name} ({len(found)})")
    ax.set(xlabel="published (%)", ylabel="ours (%)", xlim=(low, high), ylim=(low, high), aspect="equal")
    ax.grid(color=_INK, alpha=0.12, lw=0.6)
    if pairs:
        ax.legend(frameon=False, labelcolor=_INK, fontsize=9)
    return fig


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    with matplotlib.rc_context(_STYLE):
        fig = Figure(figsize=(width, height), layout="constrained")
        fig.patch.set_alpha(0)
        ax = fig.add_subplot()
    ax.patch.set_alpha(0)
    ax.tick_params(color=_INK, labelcolor=_INK)
    for spine in ax.spines.values():
        spine.set_edgecolor(_INK)
    for text in (ax.xaxis.label, ax.yaxis.label, ax.title):
        text.set_color(_INK)
    return fig, ax


def inline_svg(fig: Figure) -> str:
    """Return a figure as SVG for an HTML page, with text and axes in the page's text color."""
    with matplotlib.rc_context(_STYLE):
        buffer = io.StringIO()
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def save(fig: Figure, path: str | Path) -> None:
    """Save a figure with a white background.

    Args:
        fig: The figure.
        path: File to write; its suffix (.png, .svg or .pdf) selects the format.

    Raises:
        BadInput: If the suffix is unknown or the file can't be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise BadInput(f"{path}: a figure's name must end in .png, .svg or .pdf")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    try:
        with matplotlib.rc_context(_STYLE):
            path.parent.mkdir(parents=True, exist_ok=True)
            fig.patch.set_alpha(1)  # figures for a page are transparent
            fig.savefig(path, dpi=150, facecolor="white", metadata=metadata)
    except OSError as error:
        raise BadInput(f"{path} can't be written to: {error.strerror}") from error
