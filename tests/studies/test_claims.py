"""Tests of processes that share the runs of a command."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.reproduce import reproduce
from fedhead.papers.tables.table_result import TableResult
from fedhead.studies.claims import Claims
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells
from fedhead.studies.training import training_key

RUNS = [f"seed {number}" for number in range(200)]


def test_alone_every_run_may_be_taken() -> None:
    alone = Claims()
    assert alone.take(RUNS[0])
    assert alone.take(RUNS[0])


def test_each_run_is_taken_once_whoever_asks_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: [run for run in RUNS if Claims(tmp_path).take(run)], range(8)))
    assert Counter(run for runs in taken for run in runs) == dict.fromkeys(RUNS, 1)


def test_a_sweep_leaves_what_another_process_has_taken(tmp_path: Path) -> None:
    table = plan("digits", {"method": ["fedavg", "fedprox"], "rounds": 1, "clients": 2, "subset": 60})
    out, shared = tmp_path / "sweep", tmp_path / "claims"
    shared.mkdir()
    first = sweep_cells(table, 1)[0].runs
    Claims(shared).take(training_key(next(iter(first.values()))))
    lines: list[str] = []
    result = run_sweep(table, out, seeds=1, claims=Claims(shared), log=lines.append)
    assert [path.parent.parent.name for path in out.rglob("result.json")] == ["fedprox"], lines
    assert not result.failures


@pytest.mark.slow
def test_a_table_leaves_what_another_process_has_taken(tmp_path: Path) -> None:
    shared = tmp_path / "claims"
    shared.mkdir()
    table = tables.load("ccvr/table1")
    lines: list[list[str]] = [[], []]

    def measure(place: int) -> int:
        return reproduce(
            table,
            tmp_path / "table",
            scale="small",
            pick=["clsprox"],
            seeds=1,
            overrides={"rounds": 1},
            claims=Claims(shared),
            log=lines[place].append,
        ).left

    assert measure(0) == 0
    assert len(lines[0]) > 1
    for path in (tmp_path / "table").rglob("result.json"):
        path.unlink()  # as if the first process were still at work
    assert measure(1) == 0
    assert lines[1] == []


@pytest.mark.slow
def test_what_other_processes_measured_is_collected_without_a_file_of_results(tmp_path: Path) -> None:
    shared = tmp_path / "claims"
    shared.mkdir()
    table = tables.load("ccvr/table1")

    def measure(claims: Claims) -> TableResult:
        pick = ["clsprox cifar10-0.5", "clsprox cifar10-0.1"]
        return reproduce(
            table, tmp_path / "table", scale="small", pick=pick, seeds=1, overrides={"rounds": 1}, claims=claims
        )

    child = measure(Claims(shared))
    parent = measure(Claims(shared, over=True))
    assert [cell.mean for cell in parent.cells] == [cell.mean for cell in child.cells]
    assert None not in [cell.mean for cell in parent.cells]
    assert parent.left == 0
    next((tmp_path / "table").rglob("result.json")).unlink()  # as if a process had ended before its run
    again = measure(Claims(shared, over=True))
    assert again.left == 1
    assert [cell.mean for cell in again.cells].count(None) == 1


def test_failures_can_be_read_while_they_are_told(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    claims.fail("fedavg, seed 0", "no loss")
    assert Claims(tmp_path).failures() == {"fedavg, seed 0": "no loss"}
    assert [path.suffix for path in tmp_path.iterdir()] == [".failed"], "a draft is not left behind"
