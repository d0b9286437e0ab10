"""Published values of the papers, and lookup of the value of a cell."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedhead.core.system.errors import BadInput
from fedhead.papers.tables.paper_tables import PaperCell, PaperTable
from fedhead.papers.tables.results import digest


@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Read all published values, one row each."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def published(cell: PaperCell) -> tuple[float, float | None] | None:
    """Return the published mean and deviation of a cell; None if the paper has no value."""
    place = published_place(cell)
    row = {"mean": ""} if place is None else published_rows()[place]
    mean = _number(row["mean"])
    return None if mean is None else (mean, _number(row["std"]))


def published_place(cell: PaperCell) -> int | None:
    """Return the index of a cell's value in `published_rows`; cells of different tables may share a value."""
    rows = enumerate(published_rows())
    hits = [place for place, row in rows if all(row[k] == v for k, v in cell.find.items())]
    if len(hits) > 1:
        raise BadInput(f"{cell.name}: {len(hits)} published values fit {dict(cell.find)}; name more columns in `find`")
    return hits[0] if hits else None


def has_published_settings(table: PaperTable, cell: PaperCell) -> bool:
    """Return whether a cell's recipe is that of its table or of one of the table's variants.

    A variant is another interpretation of the paper, so its results are compared with the published ones too.

    Args:
        table: Table of the cell.
        cell: Cell at full scale, possibly changed.

    Raises:
        BadInput: The cell can't be built.
    """
    if not cell.overrides:
        return True
    base, mine = table.cell(cell.choices), digest(cell)
    variants = (table.as_in(base, name) for name in table.variants())
    return digest(base) == mine or any(variant is not None and digest(variant) == mine for variant in variants)


def _number(text: str) -> float | None:
    """Parse a published value; sizes such as 22 KB are converted to bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?: ([KM])B)?", text.strip())
    return float(match[1]) * {None: 1, "K": 1024, "M": 1024**2}[match[2]] if match else None
