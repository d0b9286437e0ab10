"""A figure of accuracy against the bytes that a client sends."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from fedhead.report.style import WIDTHS, line, log_scale, styled


@styled
def accuracy_by_bytes(points: Sequence[tuple[str, float, float]]) -> Figure:
    """Draw one point per way to a model.

    Args:
        points: Name, bytes that a client sends, and accuracy in per cent.

    Returns:
        The figure.
    """
    fig = Figure(figsize=(WIDTHS[1], 2.4), layout="constrained")
    ax = fig.add_subplot()
    for number, (name, sent, accuracy) in enumerate(points):
        ax.plot([sent / 1e3], [accuracy], **{**line(number), "linestyle": ""}, label=name)
    log_scale(ax)
    ax.set_xlabel("kB that a client sends")
    ax.set_ylabel("accuracy (%)")
    ax.legend()
    return fig
