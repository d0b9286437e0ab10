"""Plotly charts of the page: traces and layout, without the page's colors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import numpy as np

from fedhead.report.style import COLORS
from fedhead.report.table import shorten

DASHES = ("solid", "dash", "dashdot", "dot")  # same order as in the figures
SYMBOLS = ("diamond", "square", "triangle-up", "cross", "star", "hexagon", "x")
SCALE = "Cividis"  # color scale of heat maps: perceptually uniform and color-blind safe
HEIGHT = 330
POINTS = 250  # maximum number of points per curve


@dataclass(frozen=True)
class Chart:
    """One chart.

    Args:
        data: Plotly's traces. Those of one `legendgroup` are shown and hidden together by the page's legend.
        layout: Plotly layout, without the page's colors and fonts.
    """

    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)


class Style(NamedTuple):
    """Style of one method in all charts."""

    color: str
    dash: str


def style(number: int) -> Style:
    """Return the style of a method by its index, as in the figures: when colors repeat, the dashes differ."""
    return Style(COLORS[number % len(COLORS)], DASHES[number % len(DASHES)])


def text(words: str, longest: int = 60) -> str:
    """Escape a text for Plotly, and shorten a long one in the middle.

    >>> text("a < b"), text("x" * 99, 9)
    ('a &lt; b', 'xxxx…xxxx')
    """
    escaped = escape(shorten(words, longest), quote=False)
    return escaped.replace("$", "&#36;")  # Plotly renders text between two $ as a formula


def distinct(names: Sequence[str], longest: int = 16) -> list[str]:
    """Shorten names for an axis and keep them distinct.

    >>> distinct(["a" * 20, "a" * 21, "b"], 5)
    ['aa…aa', 'aa…aa (2)', 'b']
    """
    out: list[str] = []
    for name in names:
        short = text(name, longest)
        same = sum(label == short or label.startswith(f"{short} (") for label in out)
        out.append(f"{short} ({same + 1})" if same else short)
    return out


def lines(
    name: str,
    x: Sequence[float],
    mean: Sequence[float],
    deviation: Sequence[float] | None,
    look: Style,
    *,
    thin: bool = False,
    key: str | None = None,
    unit: str = "",
) -> list[dict[str, Any]]:
    """Return the traces of a curve: its band, if any, and the line above it."""
    key = key or name
    label = text(name)
    out: list[dict[str, Any]] = []
    if deviation is not None and any(deviation):
        high = [m + d for m, d in zip(mean, deviation, strict=True)]
        low = [m - d for m, d in zip(mean, deviation, strict=True)]
        shape = {"x": [*x, *reversed(x)], "y": [*high, *reversed(low)], "fill": "toself", "fillcolor": fade(look.color)}
        out.append({**shape, "mode": "none", "type": "scatter", "hoverinfo": "skip", "legendgroup": key, "name": label})
    spread = "" if deviation is None else " ± %{customdata:.2f}"
    out.append(
        {
            "type": "scatter",
            "mode": "lines+markers" if len(x) == 1 else "lines",
            "x": list(x),
            "y": list(mean),
            "line": {"color": look.color, "dash": look.dash, "width": 1.2 if thin else 2.2},
            "name": label,
            "legendgroup": key,
            **({} if deviation is None else {"customdata": list(deviation)}),
            "hovertemplate": f"%{{x}}: %{{y:.4~f}}{unit}{spread}<extra>%{{fullData.name}}</extra>",
        }
    )
    return out


def heat(
    z: Sequence[Sequence[float | None]],
    *,
    rows: str,
    columns: str,
    value: str,
    row_names: Sequence[str] | None = None,
    column_names: Sequence[str] | None = None,
    bounds: tuple[float, float] | None = None,
    height: int = HEIGHT,
    texts: Sequence[Sequence[str]] | None = None,
) -> Chart:
    """Return a heat map with its axes named; cells without a number stay empty.

    The texts of cells are shown where they fit (`fedhead.fit` in charts.js).
    """
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": [list(row) for row in z],
        "colorscale": SCALE,
        "colorbar": {"thickness": 12, "title": {"text": value, "side": "right"}},
        "hoverongaps": False,
        "hovertemplate": f"{rows} %{{y}}, {columns} %{{x}}: %{{z}}<extra></extra>",
    }
    if texts is not None:
        trace |= {"text": texts, "textfont": {"size": 11}}
    if bounds is not None:
        trace |= {"zmin": bounds[0], "zmax": bounds[1]}
    axes: dict[str, Any] = {"xaxis": {"title": {"text": columns}}, "yaxis": {"title": {"text": rows}}}
    for axis, key, names in (("xaxis", "x", column_names), ("yaxis", "y", row_names)):
        axes[axis] |= {"showgrid": False, "zeroline": False}
        if names is not None:
            trace[key] = distinct(names)
            axes[axis] |= {"type": "category"}
    axes["yaxis"]["autorange"] = "reversed"
    return Chart([trace], {**axes, "height": height})


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title."""
    return {"title": {"text": title}, **more}


def round_axis(last: int) -> dict[str, Any]:
    """Return an axis of rounds, whose ticks are whole numbers."""
    return axis("round", **({"dtick": 1} if last <= 12 else {}))


def mark(
    name: str, x: float, values: Sequence[float], look: Style, symbol: str, key: str, unit: str = ""
) -> dict[str, Any]:
    """Return the mark of a stage: its mean, with an error bar over seeds."""
    edge = 2 if "open" in symbol else 1  # an open mark consists only of its edge
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x],
        "y": [float(np.mean(values))],
        "error_y": {"array": [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0], "thickness": 1},
        "marker": {"color": look.color, "size": 10, "symbol": symbol, "line": {"width": edge, "color": "#888"}},
        "name": text(name),
        "legendgroup": key,
        "cliponaxis": False,
        "hovertemplate": f"%{{y:.4~f}}{unit}<extra>%{{fullData.name}}</extra>",
    }


def fade(color: str) -> str:
    """Return a color for a band.

    >>> fade("#0000ff")
    'rgba(0,0,255,0.18)'
    """
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"


def plain(value: Any) -> Any:
    """Convert a value for JSON, with six digits to limit the size of the page."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.6g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return int(value) if isinstance(value, np.integer) else value
