"""Plots: learning curves with a band over seeds, a partition as bubbles, our figures against published ones."""

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

# Of middling lightness, to be read on white and on black; lines also differ in their dashes.
COLORS = ("#3b82f6", "#e08a00", "#10a37f", "#ef4444", "#a855f7", "#0ea5b7", "#ec4899", "#7c9a0e")
DASHES = ("-", "--", "-.", ":")
_LEGEND_WIDTH = 90  # characters that fit beside each other in a figure of 7 inches
_INK = "#123456"  # stands for the text's color until the figure is written
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "sans-serif",
    "svg.fonttype": "none",  # text stays text: it can be searched and takes the page's font
    "svg.hashsalt": "fedhead",  # the same figure gives the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def curves(groups: Sequence[Group], figure: str = "accuracy") -> Figure:
    """A figure's course over the rounds: the mean over seeds, with a band of one deviation around it."""
    fig, ax = _blank(7.0, 3.8)
    names = 0  # lines of text in the legend
    for i, g in enumerate(groups):
        rounds, values = _aligned([run.rows for run in g.runs], figure)
        if not len(rounds):
            continue
        color, mean = COLORS[i % len(COLORS)], values.mean(axis=0)
        dash = DASHES[i // len(COLORS) % len(DASHES)]
        label = textwrap.fill(g.label, _LEGEND_WIDTH)
        names += 1 + label.count("\n")
        ax.plot(rounds, mean, dash, color=color, lw=1.8, label=label, marker="o" if len(rounds) == 1 else "")
        if len(values) > 1:
            deviation = values.std(axis=0, ddof=1)
            ax.fill_between(rounds, mean - deviation, mean + deviation, color=color, alpha=0.18, lw=0)
    ax.set(xlabel="round", ylabel=f"{'personal ' if figure == 'personal' else ''}accuracy (%)")
    ax.grid(color=_INK, alpha=0.12, lw=0.6)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if ax.lines:  # below the curves, in space of its own: it hides none of them, however long the labels are
        fig.set_figheight(fig.get_figheight() + 0.18 * names)
        fig.legend(loc="outside lower left", frameon=False, labelcolor=_INK, fontsize=9)
    return fig


def _aligned(histories: list[list[dict[str, Any]]], figure: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rounds at which every run has the figure, and its values [runs, rounds]."""
    found = [{r["round"]: r[figure] for r in rows if r.get(figure) is not None} for rows in histories]
    found = [f for f in found if f]
    common = sorted(set.intersection(*(set(f) for f in found))) if found else []
    return np.array(common), np.array([[f[r] for r in common] for f in found])


def bubbles(counts: NDArray[np.int64], names: Sequence[str] | None = None, title: str = "") -> Figure:
    """A partition as the papers show it: a bubble a client and class, its area the number of samples."""
    clients, classes = counts.shape
    fig, ax = _blank(min(2.2 + 0.38 * clients, 14.0), min(1.4 + 0.3 * classes, 12.0))
    k, c = np.nonzero(counts)
    budget = min(72 * 0.34, 72 * (fig.get_figwidth() - 1.4) / clients, 72 * (fig.get_figheight() - 1.0) / classes)
    area = counts[k, c] / max(int(counts.max()), 1) * budget**2
    ax.scatter(k, c, s=area, color=COLORS[0], alpha=0.75, lw=0)
    ax.set(xlabel="client", ylabel="class", xlim=(-0.7, clients - 0.3), ylim=(-0.7, classes - 0.3), title=title)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if names is not None and classes <= 30:
        ax.set_yticks(range(classes), list(names))
    elif classes <= 30:
        ax.set_yticks(range(classes))
    ax.grid(color=_INK, alpha=0.08, lw=0.6)
    ax.set_axisbelow(True)
    return fig


def against(pairs: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Our figures against the published ones, one dot per cell, colored by group, and the diagonal."""
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
    """The figure as SVG to stand inside a page, its text and axes in the page's own color."""
    with matplotlib.rc_context(_STYLE):
        buffer = io.StringIO()
        fig.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(_INK, "currentColor")


def save(fig: Figure, path: str | Path) -> None:
    """The figure as a file of its own, dark on white; the name's ending says which kind."""
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise BadInput(f"{path}: a picture's name must end in .png, .svg or .pdf")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    try:
        with matplotlib.rc_context(_STYLE):
            path.parent.mkdir(parents=True, exist_ok=True)
            fig.patch.set_alpha(1)  # figures made for a page are see-through there
            fig.savefig(path, dpi=150, facecolor="white", metadata=metadata)
    except OSError as error:
        raise BadInput(f"{path} can't be written to: {error.strerror}") from error
