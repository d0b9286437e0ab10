"""Tables of texts and numbers, rendered as Markdown, LaTeX (booktabs) or HTML.

`fedhead.cli.output.print_table` renders them on a terminal, `fedhead.report.page.markup.table` on the report's page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedhead.metrics.averages import mean_and_deviation

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "…": r"\ldots{}",
    "–": "--",
    **{character: f"\\{character}" for character in "{}$&%#_"},
    **{letter: rf"$\{name}$" for letter, name in (("α", "alpha"), ("β", "beta"), ("μ", "mu"), ("τ", "tau"))},
}


@dataclass(frozen=True)
class Cell:
    """Cell of a table.

    Args:
        text: Displayed text.
        value: Sort key on a page; None: the text.
        best: Whether the cell is highlighted as the best of its column.
        html: HTML that a page shows instead of the text.
    """

    text: str
    value: float | None = None
    best: bool = False
    html: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first column is left-aligned, the others are right-aligned.

    Args:
        title: Its caption.
        head: Headings of the columns.
        body: Rows of cells.
    """

    title: str
    head: Sequence[str]
    body: Sequence[Sequence[Cell | str]]

    def cells(self) -> list[list[Cell]]:
        """Return the rows, with plain texts as cells."""
        return [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.body]

    def markdown(self) -> str:
        """Return the table as Markdown, under its title."""
        lines = [_row(map(_markdown, self.head)), _row([":---", *["---:"] * (len(self.head) - 1)])]
        for row in self.cells():
            lines.append(_row(f"**{_markdown(c.text)}**" if c.best else _markdown(c.text) for c in row))
        return "\n".join([f"**{_markdown(self.title)}**", "", *lines]) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX with a caption; the preamble needs booktabs and textcomp."""
        lines = [" & ".join(map(latex_text, self.head))]
        for row in self.cells():
            # true minus signs, but not in the first column, which holds names
            texts = [
                re.sub(r"(?<![\w.])-(?=\d)", "$-$", latex_text(c.text)) if j else latex_text(c.text)
                for j, c in enumerate(row)
            ]
            lines.append(" & ".join(rf"\textbf{{{t}}}" if c.best else t for t, c in zip(texts, row, strict=True)))
        rows = [rf"    {line} \\" for line in lines]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{latex_text(self.title)}}}",
                rf"  \begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
                r"    \toprule",
                rows[0],
                r"    \midrule",
                *rows[1:],
                r"    \bottomrule",
                r"  \end{tabular}",
                r"\end{table}",
                "",
            ]
        )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def mean_std(values: Iterable[float | None], decimals: int = 2, sign: str = "") -> str:
    """Format the mean and the sample standard deviation (n − 1) over seeds; seeds without a value are skipped.

    >>> mean_std([1.0, 2.0, 3.0]), mean_std([2.5, None], sign="+"), mean_std([])
    ('2.00 ± 1.00', '+2.50', '–')
    """
    return plus_minus(*mean_and_deviation(values), decimals, sign)


def plus_minus(mean: float | None, deviation: float | None, decimals: int = 2, sign: str = "") -> str:
    """Format a mean with its deviation, if there is one."""
    if mean is None:
        return "–"
    spread = "" if deviation is None else f" ± {deviation:.{decimals}f}"
    return f"{mean:{sign}.{decimals}f}{spread}"


def number(value: float | None, spec: str = ".4g") -> Cell:
    """Return a cell of a number in a format, "–" for None."""
    return Cell("–") if value is None else Cell(format(value, spec), float(value))


def shorten(text: str, longest: int) -> str:
    """Return a text on one line of at most this many characters, shortened in the middle with ….

    >>> shorten("a long label", 7)
    'a l…bel'
    """
    text = " ".join(text.split())
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - half]}…{text[len(text) - half :]}"


def latex_text(text: str) -> str:
    r"""Return a text on one line with LaTeX's special characters escaped.

    >>> latex_text("fedprox (μ=0.1) & 5 %")
    'fedprox ($\\mu$=0.1) \\& 5 \\%'
    """
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _markdown(text: str) -> str:
    """Escape the markup characters of Markdown and HTML."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]$])", r"\\\1", text)
