"""Small HTML tables, as notebooks show them; everything in them is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

MOST = 20  # rows that are shown


def table(title: str, head: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    """Return a title and a table.

    Args:
        title: What stands above it.
        head: Names of the columns.
        body: The rows; of more than 20 the first are shown, and how many there are.

    >>> table("a < b", ["x"], [["<script>"]])
    '<div><p>a &lt; b</p><table><tr><th>x</th></tr><tr><td>&lt;script&gt;</td></tr></table></div>'
    """
    rows = "".join(f"<tr>{_cells('td', row)}</tr>" for row in body[:MOST])
    more = f"<p>… {len(body)} rows</p>" if len(body) > MOST else ""
    return f"<div><p>{escape(title)}</p><table><tr>{_cells('th', head)}</tr>{rows}</table>{more}</div>"


def _cells(tag: str, values: Sequence[Any]) -> str:
    return "".join(f"<{tag}>{escape('–' if value is None else str(value))}</{tag}>" for value in values)
