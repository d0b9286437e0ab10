"""Shards of a table or a sweep that run at the same time fill one table; the last to end writes all of it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout
from tiny_table import CPU, rows, tiny

from fedhead.papers.tables.reproduce import reproduce
from fedhead.runs.run_folder_schema import TABLE_LOCK
from fedhead.studies.sweep import sweep_table
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan

PICK = ["fedavg", "hard fedprox"]  # six cells


def first_time(work: Callable[[], object]) -> Callable[[str], None]:
    """Return a log function that does some work at its first line of a run."""
    done: list[object] = []

    def log(text: str) -> None:
        if text.startswith("[") and not done:
            done.append(text)
            work()

    return log


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["runs", "results"])
def test_the_shard_that_ends_last_writes_the_whole_table(tmp_path: Path, shared: str) -> None:
    said: list[str] = []
    common: dict[str, Any] = {"pick": PICK, "seeds": 1, "compute": CPU}
    out = dict.fromkeys((1, 2), tmp_path / "out")
    if shared == "results":  # as on two machines that have nothing else in common
        common["results"] = tmp_path / "results"
        out[1] = tmp_path / "other"

    def other() -> None:
        reproduce(tiny(), out[1], shard=(1, 2), log=said.append, **common)

    found = reproduce(tiny(), out[2], shard=(2, 2), log=first_time(other), **common)
    assert [cell.mean is not None for cell in found.cells] == [True] * 6
    with (out[2] / "table.csv").open() as file:
        assert all(row["ours"] for row in csv.DictReader(file))
    assert said[-1] == (
        "2 of 6 results are not there yet: when all shards have ended, the command without --shard measures what is "
        "left and writes the table"
    )
    if shared == "results":
        assert len(rows(tmp_path / "results")) == 6


def test_a_sweep_is_read_and_written_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    plainly = sweep_table.collect

    def noting(*args: Any) -> Any:
        with pytest.raises(Timeout):
            FileLock(tmp_path / TABLE_LOCK).acquire(blocking=False)
        held.append(True)
        return plainly(*args)

    monkeypatch.setattr(sweep_table, "collect", noting)
    table = plan("digits", {"lr": [0.1, 0.2], "rounds": 1, "clients": 2, "subset": 60})
    run_sweep(table, tmp_path, compute=CPU)
    assert held == [True]
