"""The rows under results/ are those of the tables as they are now: none is lost when a table's settings change."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

from fedhead.experiment import tables
from fedhead.experiment.results import FILE, digest
from fedhead.experiment.yaml_text import read_yaml

RESULTS = Path(__file__).parents[2] / "results"


@cache
def _cells(table: str) -> dict[str, tables.Cell]:
    return {cell.name: cell for cell in tables.load(table).cells("full")}


@cache
def _digest(table: str, name: str, overrides: str) -> str:
    changes = dict(text.split("=", 1) for text in re.split(r" (?=[\w.]+=)", overrides) if text)
    cell = _cells(table)[name].override({key: read_yaml(text, key) for key, text in changes.items()})
    assert " ".join(cell.overrides) == overrides
    return digest(cell)


def test_each_row_has_the_digest_of_its_cell_with_its_overrides() -> None:
    with (RESULTS / FILE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["scale"] for row in rows} == {"full"}
    other = [
        f"{row['table']}, {row['cell']} {row['overrides']}"
        for row in rows
        if row["digest"] != _digest(row["table"], row["cell"], row["overrides"])
    ]
    assert other == []
