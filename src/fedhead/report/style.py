"""The one style of fedhead's figures: colors, dashes, fonts and widths, for print and for pages."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from fedhead.core.errors import BadInput
from fedhead.report.text_table import shorten

P = ParamSpec("P")
R = TypeVar("R")

# Okabe and Ito's colors but for black and yellow: told apart by color-blind people, visible on white and on black.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
DASHES = ("-", "--", "-.", ":")  # beside the colors; 7 and 4 have no common factor, so 28 lines differ
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#1a2230"
WIDTHS = {1: 3.3, 2: 6.9}  # inches of one and of two columns
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "image.cmap": "viridis",
    "pdf.fonttype": 42,  # fonts are embedded as such, so that text stays text
    "ps.fonttype": 42,
    "svg.hashsalt": "fedhead",  # reproducible files
    "text.parse_math": False,  # a label with $ is no formula
}


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Draw in fedhead's style: a decorator of functions that return a figure."""

    @functools.wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(_STYLE):
            return function(*args, **kwargs)

    return draw


def line(number: int) -> dict[str, Any]:
    """Return the look of line number i: color, dashes and marker, all of which differ from the next one's."""
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def text_width(text: str, size: float = 8) -> float:
    """Return the width of a text in inches, in the style's font."""
    with _quiet():
        return float(TextPath((0, 0), text, size=size).get_extents().width) / 72 if text.strip() else 0.0


def fitting(text: str, width: float, size: float = 8) -> str:
    """Return a text of one line that is not wider than this in inches, with … in the middle where it was."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    longest = len(text)
    while longest > 3 and text_width(shorten(text, longest), size) > width:
        longest = max(3, int(0.95 * longest) - 1)
    return shorten(text, longest)


@contextmanager
def _quiet() -> Iterator[None]:
    """Do without matplotlib's warnings of letters that a font lacks: they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support", category=UserWarning)
        yield


@styled
def save(fig: Figure, path: str | Path, dpi: int = 200) -> None:
    """Save a figure with a white background.

    Args:
        fig: The figure.
        path: File to write; its suffix (.png, .svg or .pdf) selects the format.
        dpi: Dots per inch of a .png.

    Raises:
        BadInput: If the suffix is unknown or the file can't be written.
    """
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise BadInput(f"{path}: a figure's name must end in .png, .svg or .pdf")
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _quiet():
            fig.savefig(path, dpi=dpi, facecolor="white", metadata=metadata)
    except OSError as error:
        raise BadInput(f"{path} can't be written to: {error.strerror}") from error
