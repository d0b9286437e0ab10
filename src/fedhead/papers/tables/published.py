"""The papers' published values, and which of them a cell is compared with."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedhead.core.system.errors import BadInput
from fedhead.papers.tables.paper_tables import PaperCell


@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Every value of the papers' tables, one row each."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def published(cell: PaperCell) -> tuple[float, float | None] | None:
    """The published mean and deviation of a cell, or None if the paper gives no value for it."""
    place = published_place(cell)
    row = {"mean": ""} if place is None else published_rows()[place]
    mean = _number(row["mean"])
    return None if mean is None else (mean, _number(row["std"]))


def published_place(cell: PaperCell) -> int | None:
    """Which of `published_rows` a cell is compared with: cells of two tables may be compared with one."""
    rows = enumerate(published_rows())
    found = [place for place, row in rows if all(row[k] == v for k, v in cell.find.items())]
    if len(found) > 1:
        raise BadInput(f"{cell.name}: {len(found)} published values fit {dict(cell.find)}; name more columns in `find`")
    return found[0] if found else None


def _number(text: str) -> float | None:
    """A published value; sizes such as 22 KB in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?: ([KM])B)?", text.strip())
    return float(match[1]) * {None: 1, "K": 1024, "M": 1024**2}[match[2]] if match else None
