"""Critical difference diagram of mean ranks (Demšar, 2006, Fig. 1)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from fedhead.report.compare.statistics import Ranking
from fedhead.report.style import COLORS, INK, Figure, fitting, styled, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEP, _BAR = 0.17, 0.07  # inches per label and per bar of a group
_VALUE = 0.36  # inches of a mean rank's text


@styled
def critical_difference(ranking: Ranking, width: float = 6.9) -> Figure:
    """Draw methods at their mean ranks, the best at the left; a bar connects those without significant difference.

    Args:
        ranking: The ranks.
        width: Width in inches.
    """
    count, groups = len(ranking.names), ranking.groups()
    order = sorted(range(count), key=lambda i: ranking.mean_ranks[i])
    half = (count + 1) // 2
    below = 0.12 + _BAR * len(groups)
    height = 0.72 + below + _STEP * half
    names = [fitting(name, 0.34 * width - _VALUE) for name in ranking.names]
    margin = max(map(text_width, names)) + _VALUE + 0.12
    fig = Figure(figsize=(width, height))
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    unit = (width - 2 * margin) / (count - 1)

    def x(rank: float) -> float:
        return margin + (rank - 1) * unit

    top = height - 0.67
    ax.plot([x(1), x(count)], [top, top], color=INK, lw=0.8)
    every = math.ceil(0.2 / unit)
    for rank in range(1, count + 1):
        ax.plot([x(rank)] * 2, [top, top + 0.06], color=INK, lw=0.8)
        if (rank - 1) % every == 0:
            ax.text(x(rank), top + 0.09, str(rank), ha="center", va="bottom", fontsize=7)
    _legend(ax, ranking, unit, width, height)
    for side, members in (("left", order[:half]), ("right", order[half:][::-1])):
        for place, i in enumerate(members):
            at, y = x(ranking.mean_ranks[i]), top - below - _STEP * (place + 0.5)
            _method(ax, names[i], ranking.mean_ranks[i], at, top, y, margin if side == "left" else width - margin, side)
    for number, group in enumerate(groups):
        ends = [x(ranking.mean_ranks[i]) for i in (group[0], group[-1])]
        y = top - 0.1 - _BAR * number
        ax.plot([ends[0] - 0.04, ends[1] + 0.04], [y, y], color=COLORS[0], lw=2.4, solid_capstyle="butt")
    return fig


def _legend(ax: Axes, ranking: Ranking, unit: float, width: float, height: float) -> None:
    length, middle, y = ranking.critical_difference * unit, width / 2, height - 0.25
    if length <= width - 0.2:
        ax.plot([middle - length / 2, middle + length / 2], [y, y], "|-", color=INK, lw=0.8, ms=5)
    note = f"critical difference {ranking.critical_difference:.2f} (p = 0.05), {len(ranking.ranks)} settings"
    ax.text(middle, y + 0.07, note, ha="center", va="bottom", fontsize=7)


def _method(
    ax: Axes, name: str, rank: float, at: float, top: float, y: float, end: float, side: Literal["left", "right"] | str
) -> None:
    """Draw one method: a line from its rank to the side, with the rank and the name."""
    out = -1 if side == "left" else 1
    ax.plot([at, at, end], [top, y, y], color=INK, lw=0.6)
    align = "right" if side == "left" else "left"
    ax.text(end + out * 0.04, y, f"{rank:.2f}", ha=align, va="center", fontsize=7)
    ax.text(end + out * (0.04 + _VALUE), y, name, ha=align, va="center")
