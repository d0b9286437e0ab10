"""Building blocks of the page as HTML: sections, tables, charts, choices and legends; every text is escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fedhead.core.tree.digest import digest_text
from fedhead.report.page.charts import Chart, Style, plain
from fedhead.report.table import Cell, Table, shorten

LONGEST = 100  # displayed characters of a label

_PATTERNS = {"solid": "", "dash": "7 5", "dot": "2 4", "dashdot": "7 4 2 4"}


@dataclass(frozen=True)
class Section:
    """A section of the page.

    Args:
        id: Anchor in the page's address, `#id`.
        title: Heading.
        body: HTML.
    """

    id: str
    title: str
    body: str

    @property
    def digest(self) -> str:
        """Fingerprint of the content."""
        return digest_text(self.body)

    @property
    def html(self) -> str:
        """The section with its heading, which is a link to itself."""
        return (
            f'<section id="{self.id}" data-digest="{self.digest}" aria-labelledby="{self.id}-title">'
            f'<h2 id="{self.id}-title"><a href="#{self.id}">{escape(self.title)}</a></h2>\n{self.body}\n</section>'
        )


def words(user_text: object, longest: int = LONGEST) -> str:
    """Return a text as HTML with isolated text direction, wrapped at spaces and after `/` and `,` only.

    A very long text is shortened, with the full text as tooltip.

    >>> words("a < b")
    '<bdi>a &lt; b</bdi>'
    """
    text = str(user_text)
    short = shorten(text, longest)
    title = f' title="{escape(text)}"' if short != text else ""
    wrapping = re.sub(r"([/,])(?=\S)", r"\1<wbr>", escape(short))
    return f"<bdi{title}>{wrapping}</bdi>"


def table(id: str, content: Table, wordy: Iterable[str] = ()) -> str:
    """Return a sortable and filterable table that scrolls horizontally if necessary.

    Args:
        id: Identifier of the table in the page.
        content: The table; the first cell of each row is its header.
        wordy: Headings of the columns whose texts are wrapped.
    """
    wrapped, caption = {content.head.index(word) for word in wordy if word in content.head}, content.title
    left = ['class="text" ' if j in wrapped else "" for j in range(len(content.head))]
    top = "".join(f'<th {place}scope="col">{words(word)}</th>' for place, word in zip(left, content.head, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(_cell(cell, j, j in wrapped) for j, cell in enumerate(row)) + "</tr>"
        for row in content.cells()
    )
    # not a <caption>, which would scroll with the table
    above = f'<p class="caption" id="{id}-caption">{words(caption, 400)}</p>' if caption else ""
    named = f'aria-labelledby="{id}-caption"' if caption else f'aria-label="{escape(" ".join(content.head))}"'
    return (
        f'{above}<div class="wide" tabindex="0" role="region" {named}><table class="sortable" id="{id}" {named}>'
        f"<thead><tr>{top}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _cell(cell: Cell, column: int, wordy: bool) -> str:
    tag, attributes = ("th", ' scope="row"') if column == 0 else ("td", "")
    names = [name for name, present in (("best", cell.best), ("text", wordy)) if present and column]
    attributes += f' class="{" ".join(names)}"' if names else ""
    attributes += "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f"<{tag}{attributes}>{cell.html or words(cell.text, 200 if wordy else LONGEST)}</{tag}>"


def chart(id: str, group: str, charts: Mapping[str, Chart], label: str, title: str = "") -> str:
    """Return a chart, or several of which one is selected.

    Args:
        id: Identifier of the chart in the page.
        group: The group of choices and legends that act on it.
        charts: The charts, keyed by their name in the selector.
        label: Description for screen readers.
        title: A heading.
    """
    content = json.dumps(
        {name: {"data": plain(c.data), "layout": plain(c.layout)} for name, c in charts.items()},
        separators=(",", ":"),
    ).replace("<", "\\u003c")
    height = next(iter(charts.values())).layout.get("height", 330)
    above = f"<h3>{words(title)}</h3>" if title else ""
    return (
        f'<figure class="chart" id="{id}" data-group="{escape(group)}" aria-label="{escape(label)}">{above}'
        f'<div class="plot" style="min-height:{height}px"></div>'
        f'<script type="application/json">{content}</script></figure>'
    )


def folded(id: str, summary: str, content: str) -> str:
    """Return content that is shown on demand."""
    return f'<details id="{id}"><summary>{escape(summary)}</summary>{content}</details>'


def panels(figures: Sequence[str]) -> str:
    """Put figures side by side, as many as fit."""
    single = " single" if len(figures) == 1 else ""
    return f'<div class="panels{single}">{"".join(figures)}</div>'


def choice(group: str, label: str, names: Mapping[str, str] | Sequence[str]) -> str:
    """Return a selector for the charts and blocks of a group; empty for a single name.

    Args:
        group: The group.
        label: Label of the selector.
        names: The names, or displayed texts by name.
    """
    shown = names if isinstance(names, Mapping) else {name: name for name in names}
    if len(shown) < 2:
        return ""
    options = "".join(f'<option value="{escape(k)}">{escape(shorten(v, 90))}</option>' for k, v in shown.items())
    return (
        f'<div class="controls"><label for="{group}-choice">{escape(label)}</label>'
        f'<select id="{group}-choice" data-choose="{escape(group)}" autocomplete="off">{options}</select></div>'
    )


def blocks(group: str, contents: Mapping[str, str]) -> str:
    """Return blocks of HTML; only the selected one is shown, initially the first."""
    return "".join(
        f'<div data-group="{escape(group)}" data-choice="{escape(name)}"{" hidden" if i else ""}>{content}</div>'
        for i, (name, content) in enumerate(contents.items())
    )


def legend(group: str, styles: Mapping[str, Style]) -> str:
    """Return the legend of a group of charts: a click on an entry toggles it, a double click hides all others."""
    if len(styles) < 2:
        return ""
    items = "".join(
        f'<li><button type="button" id="{group}-legend-{i}" data-group="{escape(group)}" data-key="{escape(name)}" '
        f'aria-pressed="true" title="Click: hide or show; double or Shift click: alone">{_sample(look)}'
        f"{words(name)}</button></li>"
        for i, (name, look) in enumerate(styles.items())
    )
    return f'<ul class="legend" aria-label="Legend">{items}</ul>'


def _sample(look: Style) -> str:
    pattern = f' stroke-dasharray="{_PATTERNS[look.dash]}"' if _PATTERNS[look.dash] else ""
    return (
        '<svg width="30" height="8" aria-hidden="true"><line x1="0" x2="30" y1="4" y2="4" stroke-width="3" '
        f'stroke="{look.color}"{pattern}/></svg>'
    )


def notes(lines: Iterable[str]) -> str:
    """Return a list of notes; empty without notes."""
    items = "".join(f"<li>{words(line, 400)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if items else ""


def identifier(*parts: object) -> str:
    """Return an identifier of the page from any texts.

    >>> identifier("curve", "a b/c")
    'curve-a-b-c'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", "-".join(map(str, parts))).strip("-")
