"""Tests of processes that share the runs of a command."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fedhead.experiment import tables
from fedhead.experiment.claims import Claims
from fedhead.experiment.reproduce import reproduce
from fedhead.experiment.sweep import run_sweep
from fedhead.experiment.sweep_file import plan

RUNS = [Path(f"runs/seed-{number}") for number in range(200)]


def test_alone_every_run_may_be_taken() -> None:
    alone = Claims()
    assert alone.take(RUNS) == RUNS
    assert alone.take(RUNS) == RUNS


def test_each_run_is_taken_once_whoever_asks_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda _: Claims(tmp_path).take(RUNS), range(8)))
    assert Counter(run for runs in taken for run in runs) == dict.fromkeys(RUNS, 1)


def test_a_sweep_leaves_what_another_process_has_taken(tmp_path: Path) -> None:
    table = plan("digits", {"method": ["fedavg", "fedprox"], "rounds": 1, "clients": 2, "subset": 60})
    out, shared = tmp_path / "sweep", tmp_path / "claims"
    shared.mkdir()
    Claims(shared).take([out / "runs" / "fedavg" / "seed-0"])
    lines: list[str] = []
    result = run_sweep(table, out, seeds=1, claims=Claims(shared), log=lines.append)
    assert [path.parent.parent.name for path in out.rglob("result.json")] == ["fedprox"], lines
    assert not result.failures


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
