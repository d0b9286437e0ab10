"""The report's page inside a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedhead.report.page.content import Content
from fedhead.report.page.page import Page, page, save
from fedhead.runs.read_runs import Run


class Report:
    """A page about runs, as `fedhead report` writes it; notebooks show it inline.

    Args:
        runs: The runs.
    """

    def __init__(self, runs: Sequence[Run]):
        self._runs = runs

    @property
    def page(self) -> Page:
        """The page."""
        return page(Content(self._runs))

    def save(self, path: str | Path) -> Path:
        """Write the page to an HTML file, and return its path."""
        return save(self.page, path)

    def __repr__(self) -> str:
        """Show the number of runs, for terminals."""
        return f"Report({len(self._runs)} runs; save it with .save('report.html'))"

    def _repr_html_(self) -> str:
        frame = "width:100%;height:640px;border:1px solid #ccc"
        return f'<iframe style="{frame}" title="fedhead report" srcdoc="{escape(self.page.html())}"></iframe>'
