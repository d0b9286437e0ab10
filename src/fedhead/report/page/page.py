"""The report: one self-contained HTML file that needs no network; for screens, phones and print, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from fedhead.core.system.atomic_file import atomic
from fedhead.recipes.recipe import Recipe
from fedhead.report.compare.pivot import brief, differing, flat_recipe, natural, text
from fedhead.report.page import markup
from fedhead.report.page.content import Content, load
from fedhead.report.page.markup import Section
from fedhead.report.page.sections import every
from fedhead.runs.read_runs import Run

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("plotly-cartesian.min.js", "charts.js", "tables.js", "page.js")
# Keys that the header shows even at their defaults.
MAIN = ("method", "model", "clients", "rounds", "local_epochs", "batch_size", "lr")
# Content security policy: no requests, except those of a board's page to its own server.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True, repr=False)
class Page:
    """Report page, which notebooks show inline.

    Args:
        title: Title, as plain text.
        header: HTML above the sections.
        sections: Sections.
    """

    title: str
    header: str
    sections: Sequence[Section]

    @property
    def navigation(self) -> str:
        """Links to the sections."""
        return "".join(f'<a href="#{s.id}">{escape(s.title)}</a>' for s in self.sections)

    def html(self, seconds: float | None = None) -> str:
        """Return the whole page.

        Args:
            seconds: Update interval of a board's page; None: a static file.
        """
        return Template(_asset("page.html")).substitute(
            policy=POLICY if seconds is None else f"{POLICY}; connect-src 'self'",
            title=escape(self.title),
            css=_asset("page.css"),
            live="" if seconds is None else f' data-live="{int(1000 * seconds)}"',
            header=self.header,
            navigation=self.navigation,
            status="" if seconds is None else '<span id="status" role="status">live</span>',
            main="\n".join(section.html for section in self.sections),
            scripts="\n".join(f"<script>{_asset(name)}</script>" for name in SCRIPTS),
        )

    def _repr_html_(self) -> str:
        frame = "width:100%;height:640px;border:1px solid #ccc"
        return f'<iframe style="{frame}" title="fedhead report" srcdoc="{escape(self.html())}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write the page to an HTML file, and return its path."""
        path, html = Path(path), self.html()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as draft:
            draft.write_text(html, encoding="utf-8")
        return path


def write(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write the report about runs.

    Args:
        paths: Run folders, or folders that contain them.
        out: HTML file to write.

    Returns:
        The path of the file.

    Raises:
        BadInput: If there is no run that can be read.
    """
    return page(load(paths)).save(out)


def page(content: Content, command: str = "", title: str = "", date: datetime | None = None) -> Page:
    """Build the page of runs.

    Args:
        content: The runs.
        command: Command that makes the page, for its head; empty for a page made in Python.
        title: Title; empty: the data sets and partitions.
        date: Time of the page; None: now.
    """
    recipes = [run.recipe for run in content.runs]
    data = ", ".join(sorted({str(r.dataset) for r in recipes}))
    partitions = sorted({brief(r.partition) for r in recipes}, key=natural)
    title = title or " · ".join(filter(None, [data, ", ".join(partitions[:4]) + (" …" if len(partitions) > 4 else "")]))
    finished = sum(run.finished for run in content.runs)
    others = len(content.runs) - finished
    counts = [f"{finished} finished", *([f"{others} not finished"] if others else [])]
    counts += [f"{len(content.broken)} broken"] if content.broken else []
    seeds = sorted({r.seed for r in recipes})
    said = f"seeds {', '.join(map(str, seeds[:8]))}{' …' if len(seeds) > 8 else ''}" if seeds else "no run yet"
    title = title or ("Tuning" if content.studies else "")
    said += f". Studies: {len(content.studies)}" if content.studies else ""
    time = f"{date or datetime.now().astimezone():%Y-%m-%d %H:%M}"
    stamp = "" if content.live else f'<time datetime="{time}">{time}</time>. '
    shared = brief(", ".join(f"{key}={text(value)}" for key, value in _shared(content.runs).items()))
    header = (
        f"<h1>{markup.words(title or 'fedhead', 200)}</h1><p>{stamp}Runs: {', '.join(counts)}; {said}. "
        "Accuracies in per cent; only finished runs count in means.</p>"
        + (f"<p>All runs: {markup.words(shared, 400)}</p>" if shared else "")
        + (f"<p>Made by <code>{markup.words(command, 200)}</code></p>" if command else "")
        + markup.notes(content.notes)
    )
    return Page(title or "no run yet", header, every(content))


def _shared(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the keys with the same value in all runs: the main ones, and those that differ from their defaults."""
    flat, default = [flat_recipe(run.recipe, run.left_out) for run in runs], flat_recipe(Recipe())
    common = {key: flat[0][key] for key in flat[0] if key not in differing(flat)} if flat else {}
    return {
        key: value
        for key, value in common.items()
        if key in MAIN or (value != default.get(key) and key not in ("dataset", "partition"))
    }


@cache
def _asset(name: str) -> str:
    text = (ASSETS / name).read_text(encoding="utf-8")
    assert "</script" not in text, "it would end the script"
    return text
