"""A table of texts, written as Markdown or as LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
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
    **{letter: rf"$\{name}$" for letter, name in (("α", "alpha"), ("β", "beta"), ("μ", "mu"), ("τ", "tau"))},
}
_LONGEST = 60  # characters of a cell in LaTeX, that columns fit a page
_LATIN = 0x250  # characters below are Latin; pdflatex has no others


@dataclass(frozen=True)
class TextTable:
    """A table of texts; the first column is left-aligned, the others are numbers.

    Args:
        title: What it shows.
        head: Headings of the columns.
        body: Rows of cells.
        bold: Cells, as row and column, that stand out.
    """

    title: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]
    bold: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """Return the table as Markdown, under its title."""
        aligned = "|".join([" :--- ", *[" ---: "] * (len(self.head) - 1)])
        lines = [" | ".join(map(_markdown, self.head)), ""]
        for i, row in enumerate(self.body):
            cells = [f"**{_markdown(c)}**" if (i, j) in self.bold else _markdown(c) for j, c in enumerate(row)]
            lines.append(" | ".join(cells))
        rows = [f"| {line} |" if line else f"|{aligned}|" for line in lines]
        return "\n".join([f"**{_markdown(self.title)}**", "", *rows]) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX with a caption; the preamble needs booktabs and textcomp."""
        written = self._latex_texts()
        lines = [" & ".join(written[cell] for cell in self.head)]
        for i, row in enumerate(self.body):
            cells = [_number(written[c]) if j else written[c] for j, c in enumerate(row)]
            cells = [rf"\textbf{{{c}}}" if (i, j) in self.bold else c for j, c in enumerate(cells)]
            lines.append(" & ".join(cells))
        rows = [rf"    {line} \\" for line in lines]
        return "\n".join(
            [
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{latex_text(self.title, 1000)}}}",
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

    def _latex_texts(self) -> dict[str, str]:
        """Return the texts of all cells for LaTeX; long ones that would be the same when cut stay whole."""
        texts = dict.fromkeys([*self.head, *(cell for row in self.body for cell in row)])
        cut = Counter(shorten(text, _LONGEST) for text in texts)
        return {text: latex_text(text, _LONGEST if cut[shorten(text, _LONGEST)] == 1 else len(text)) for text in texts}


def shorten(text: str, longest: int) -> str:
    """Return a text on one line that is no longer than this, with … in the middle where it was.

    >>> shorten("a long label", 7)
    'a l…bel'
    """
    text = " ".join(text.split())
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - half]}…{text[len(text) - half :]}"


def latex_text(text: str, longest: int = _LONGEST) -> str:
    """Return a text for LaTeX, with what has a meaning there escaped, and not longer than fits a table.

    >>> latex_text("fedprox (μ=0.1) & 5 %")
    'fedprox ($\\\\mu$=0.1) \\\\& 5 \\\\%'
    """
    return "".join(_LATEX.get(character, character) for character in shorten(text, longest))


def beyond_latin(text: str) -> bool:
    """Whether LaTeX source holds letters that pdflatex has not, such as Hebrew: lualatex or xelatex have them."""
    return any(ord(character) >= _LATIN for character in text)


def _number(cell: str) -> str:
    """Return a cell of numbers in LaTeX with true minus signs."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", cell)


def _markdown(text: str) -> str:
    """Escape what Markdown, and the HTML within it, would take for markup."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]$])", r"\\\1", text)
