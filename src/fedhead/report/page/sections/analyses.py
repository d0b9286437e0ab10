"""Figures that `fedhead analyse` has written to the run folders."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section, panels, words

FOLDER = "analysis"  # subfolder of a run folder
LARGEST = 250_000  # maximum size of a picture in bytes; larger ones are left out


def section(content: Content) -> Section | None:
    """Return the pictures of all analyses."""
    figures = [figure for run in content.runs for figure in pictures(run.path / FOLDER, str(run.path))]
    return Section("analyses", "Analyses", panels(figures)) if figures else None


def pictures(folder: Path, source: str) -> list[str]:
    """Return the .png files of a folder as figures, titled by file name and source."""
    figures = []
    for file in sorted(folder.glob("*.png")):
        if file.is_file() and file.stat().st_size <= LARGEST:
            name = f"{file.stem}, {source}"
            picture = base64.b64encode(file.read_bytes()).decode()
            figures.append(
                f'<figure><h3>{words(name)}</h3><img alt="{escape(name)}" src="data:image/png;base64,{picture}">'
                "</figure>"
            )
    return figures
