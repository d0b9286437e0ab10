"""The rows of a CSV text of which a killed process may have cut some: a row that was cut takes no other one with it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class CsvRow:
    """A row of a text.

    Args:
        line: The number of its first line, from 1.
        start: Where in the text it begins.
        fields: What it holds; None where it has not as many fields as the header.
    """

    line: int
    start: int
    fields: list[str] | None


_BOM = "\ufeff"  # the byte-order mark with which spreadsheets begin a file


def header_of(text: str) -> list[str]:
    """Return the fields of a text's first line; a byte-order mark is no part of the first one.

    >>> header_of("\\ufefftable,cell\\n")
    ['table', 'cell']
    """
    return next(csv.reader([text.removeprefix(_BOM).partition("\n")[0]]), [])


def rows_of(text: str) -> Iterator[CsvRow]:
    """Yield the rows below a text's header; empty lines are none.

    A quoted field may go on over several lines. If it does not end so that the row is as long as the header, its row
    was cut there, and the next line begins another row.
    """
    width = len(header_of(text))
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    place, start = 1, len(lines[0]) if lines else 0
    while place < len(lines):
        count = _lines_of_row(lines, place, width)
        whole = lines[place : place + (count or 1)]
        fields = next(csv.reader(whole), []) if count else None
        if fields is None or (fields and len(fields) != width):
            yield CsvRow(place + 1, start, None)
        elif fields:
            yield CsvRow(place + 1, start, fields)
        place, start = place + len(whole), start + sum(map(len, whole))


def _lines_of_row(lines: list[str], first: int, width: int) -> int:
    """How many lines a row has; 0 where one of its quoted fields does not end."""
    quotes = 0
    for last in range(first, len(lines)):
        quotes += lines[last].count('"')  # one within a quoted field is written twice
        if quotes % 2 == 0:
            return last - first + 1 if last == first or _fits(lines[first : last + 1], width) else 0
    return 0


def _fits(lines: list[str], width: int) -> bool:
    try:
        return [len(fields) for fields in csv.reader(lines, strict=True)] == [width]
    except csv.Error:  # what follows the end of a quoted field is no comma
        return False
