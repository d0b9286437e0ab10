"""Common style of all figures: colors, dashes, fonts, widths, legends and panels."""

from __future__ import annotations

import functools
import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

import matplotlib.figure
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedhead.core.system.errors import BadInput, require
from fedhead.report.table import shorten
from fedhead.report.widths import WIDTHS as WIDTHS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

P = ParamSpec("P")
R = TypeVar("R")

# Okabe and Ito's colors without black and yellow: color-blind safe, and visible on white and black.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("-", "--", "-.", ":")  # 4 dashes and 7 colors give 28 different lines
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#1a2230"
_STYLE = matplotlib.rc_params_from_file(Path(__file__).parent / "fedhead.mplstyle", use_default_template=False)


class Figure(matplotlib.figure.Figure):
    """Matplotlib figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=150)
        return buffer.getvalue()


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Draw in fedhead's style: a decorator of functions that return a figure."""

    @functools.wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(_STYLE):
            return function(*args, **kwargs)

    return draw


def line(number: int) -> dict[str, Any]:
    """Return color, dashes and marker of a line by its number; consecutive lines differ in all three."""
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


@functools.lru_cache(maxsize=1024)
def text_width(text: str, size: float = 8) -> float:
    """Return the width of a text in inches, in the style's font."""
    with _quiet():
        return float(TextPath((0, 0), text, size=size).get_extents().width) / 72 if text.strip() else 0.0


def fitting(text: str, width: float, size: float = 8) -> str:
    """Shorten a one-line text to a width in inches, with … in the middle."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(text[:1000].split()))
    measured = text_width(text, size)
    if measured <= width:
        return text
    longest = max(3, int(len(text) * width / measured))
    while longest > 3 and text_width(shorten(text, longest), size) > width:
        longest = max(3, min(longest - 1, int(0.95 * longest)))
    return shorten(text, longest)


def legend_below(fig: Figure, handles: Sequence[Artist], labels: Sequence[str], title: str | None = None) -> None:
    """Add a legend below everything, in as many columns as fit; the figure grows by its height.

    Args:
        fig: A figure with constrained layout.
        handles: Artists of the legend's entries.
        labels: Text of each entry; texts wider than the figure are shortened in the middle.
        title: Title of the legend.
    """
    width = float(fig.get_figwidth())
    texts = [fitting(label, width - 0.7, 7) for label in labels]
    columns = max(1, min(len(texts), int((width - 0.1) / (max(text_width(text, 7) for text in texts) + 0.6))))
    lines = math.ceil(len(texts) / columns) + (title is not None)
    fig.set_figheight(fig.get_figheight() + 0.16 * lines + 0.08)
    fig.legend(handles, texts, loc="outside lower center", ncols=columns, title=title)


def across(count: int, width: float, most: int) -> int:
    """Return the number of panels per row: up to `most` in a two-column figure, half as many in a one-column figure."""
    return min(count, max(1, round(most * width / WIDTHS[2])))


def panels(
    count: int, width: float, most: int, height: float | None = None, legend: bool = False
) -> tuple[Figure, list[Axes]]:
    """Create a figure with a number of axes, in rows of equal panels.

    Args:
        count: Number of axes.
        width: Width of the figure in inches.
        most: Most panels per row of a two-column figure; a one-column figure has half as many.
        height: Height of a row in inches; None: as wide as a panel.
        legend: Whether a panel reserves width for a scale.
    """
    columns = across(count, width, most)
    rows = math.ceil(count / columns)
    each = height or width / columns * (0.8 if legend else 1.0)
    fig = Figure(figsize=(width, min(each * rows, 60.0)), layout="constrained")
    return fig, [fig.add_subplot(rows, columns, i + 1) for i in range(count)]


def log_scale(ax: Axes) -> None:
    """Set a logarithmic x axis with plain numbers at the powers of ten.

    If there is room, 2 and 5 times the powers of ten are labeled too.
    """
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    figure = ax.get_figure()
    inches = ax.get_position().width * figure.get_figwidth() if isinstance(figure, matplotlib.figure.Figure) else 1.0
    between = math.log10(high / low) < inches  # three labels need about an inch
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if between else (1.0,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def without_axes(ax: Axes) -> None:
    """Remove ticks and frame from axes that have no meaning, such as those of an embedding."""
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)


def thin_ticks(ax: Axes, axis: Literal["x", "y"], labels: Sequence[str], most: int = 12) -> None:
    """Label the ticks of an axis, or a subset that does not overlap."""
    every = max(1, math.ceil(len(labels) / most))
    places = range(0, len(labels), every)
    (ax.set_xticks if axis == "x" else ax.set_yticks)(list(places), [labels[i] for i in places])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence matplotlib's warnings about missing glyphs, which are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support", category=UserWarning)
        yield


@styled
def save(fig: matplotlib.figure.Figure, path: str | Path, dpi: int = 200, title: str | None = None) -> None:
    """Save a figure with a white background.

    Args:
        fig: The figure.
        path: File to write; its suffix (.png, .svg or .pdf) selects the format.
        dpi: Dots per inch of a .png.
        title: Title in the file's metadata; not drawn.

    Raises:
        BadInput: If the suffix is unknown or the file can't be written.
    """
    path = Path(path)
    require(path.suffix.lower() in (".png", ".svg", ".pdf"), f"{path}: a figure's name must end in .png, .svg or .pdf")
    metadata: dict[str, str | None] = {"Title": title} if title is not None else {}
    metadata |= {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fig.patch.set_alpha(1)  # opaque; figures for a page are transparent
        with _quiet():
            fig.savefig(path, dpi=dpi, facecolor="white", metadata=metadata)
    except OSError as error:
        raise BadInput(f"{path} can't be written to: {error.strerror}") from error
