"""The rows under results/ are those of the tables as they are now: none is lost when a table's settings change."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.recorded_cells import changed_cell
from fedhead.papers.tables.results import FILE, Measurement, _read

RESULTS = Path(__file__).parents[2] / "results"


@cache
def _cells(table: str) -> dict[str, tables.Cell]:
    return {cell.name: cell for cell in tables.load(table).cells("full")}


@cache
def _rows() -> list[Measurement]:
    return list(_read(RESULTS / FILE))


def test_each_row_has_the_digest_of_its_cell_with_its_overrides() -> None:
    rows = {(row.table, row.cell, row.overrides, row.digest): row for row in _rows()}
    assert {row.scale for row in rows.values()} == {"full"}
    other = [
        f"{row.table}, {row.cell} {row.overrides}"
        for row in rows.values()
        if changed_cell(_cells(row.table)[row.cell], row) is None
    ]
    assert other == []
    assert any("callbacks=" in row.overrides for row in rows.values())  # whose settings hold others in brackets


def test_each_row_was_measured_by_a_commit_of_this_history_or_of_the_notes() -> None:
    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(RESULTS), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    if git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("this is no clone with all of the history")
    history, notes = git("log", "--format=%H").split(), (RESULTS / "notes.md").read_text(encoding="utf-8")
    named = {row.commit for row in _rows()}
    assert [
        one for one in sorted(named) if one not in notes and not any(full.startswith(one) for full in history)
    ] == []
