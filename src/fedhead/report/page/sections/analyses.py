"""Figures that `fedhead analyse` has left in the run folders."""

from __future__ import annotations

import base64
from html import escape

from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, panels, words

FOLDER = "analysis"  # below a run folder
LARGEST = 250_000  # bytes of a picture that the page takes in


def section(content: Content) -> Section | None:
    """Return the pictures of all analyses."""
    figures = []
    for run in content.runs:
        for file in sorted((run.path / FOLDER).glob("*.png")):
            if file.is_file() and file.stat().st_size <= LARGEST:
                name = f"{file.stem}, {run.path}"
                picture = base64.b64encode(file.read_bytes()).decode()
                figures.append(
                    f'<figure><h3>{words(name)}</h3><img alt="{escape(name)}" src="data:image/png;base64,{picture}">'
                    "</figure>"
                )
    return Section("analyses", "Analyses", panels(figures)) if figures else None
