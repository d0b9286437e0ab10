"""Tests of a table's command on a folder that holds finished runs: they are shown, with what they were computed in."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_table import CPU, rows, tiny

from fedhead.papers.tables.reproduce import reproduce

PICK = ["mild fedavg"]


def test_a_finished_run_of_another_precision_is_named(tmp_path: Path) -> None:
    said: list[str] = []
    first = reproduce(tiny(), tmp_path, pick=PICK, seeds=1, compute=CPU)
    again = reproduce(tiny(), tmp_path, pick=PICK, seeds=2, compute=replace(CPU, precision="bf16"), log=said.append)
    assert [cell.values[0] for cell in again.cells] == [cell.mean for cell in first.cells]
    (line,) = [line for line in said if "where bf16 is asked for now" in line]
    assert f"2 of 4 results are in {tmp_path}, from " in line
    assert ", fp32, where bf16 is asked for now; to measure them again, use another folder" in line


def test_finished_runs_are_shown_when_the_time_is_up(tmp_path: Path) -> None:
    said: list[str] = []
    first = reproduce(tiny(), tmp_path / "out", pick=PICK, seeds=1, compute=CPU)
    assert None not in [cell.mean for cell in first.cells]
    again = reproduce(tiny(), tmp_path / "out", pick=PICK, seeds=2, minutes=0, compute=CPU, log=said.append)
    assert [cell.values for cell in again.cells] == [cell.values for cell in first.cells]
    assert again.left == 2
    assert "the time is up: 2 of 2 runs are left" in said


def test_finished_runs_are_entered_into_the_results_when_the_time_is_up(tmp_path: Path) -> None:
    first = reproduce(tiny(), tmp_path / "out", pick=PICK, seeds=1, compute=CPU)
    reproduce(tiny(), tmp_path / "out", pick=PICK, seeds=1, minutes=0, results=tmp_path, compute=CPU)
    assert [float(row["value"]) for row in rows(tmp_path)] == [cell.mean for cell in first.cells]


@pytest.mark.slow
def test_a_cut_file_is_named_with_what_to_do_and_that_helps(tmp_path: Path) -> None:
    first = reproduce(tiny(), tmp_path, pick=PICK, seeds=1, compute=CPU)
    file, _ = sorted(tmp_path.glob("runs/*/seed-0/result.json"))
    file.write_bytes(file.read_bytes()[:30])
    (reason,) = reproduce(tiny(), tmp_path, pick=PICK, seeds=1, compute=CPU).failures.values()
    fix = "delete it: the run then goes on from its checkpoint and writes it again"
    assert re.fullmatch(f"{re.escape(str(file))} can't be read: .*; {fix}", reason)
    assert reproduce(tiny(), tmp_path, pick=PICK, seeds=1, minutes=0, compute=CPU).left == 1
    file.unlink()
    again = reproduce(tiny(), tmp_path, pick=PICK, seeds=1, compute=CPU)
    assert [cell.values for cell in again.cells] == [cell.values for cell in first.cells]
