"""Shards of a table or a sweep that run at the same time fill one table; the last to end writes all of it."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_table import CPU, rows, tiny

from fedhead.papers.tables.reproduce import reproduce
from fedhead.runs.run_folder_schema import TABLE_LOCK
from fedhead.studies.sweep import sweep_table
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan

PICK = ["fedavg", "hard fedprox"]  # six cells


def first_time(work: Callable[[], object]) -> Callable[[str], None]:
    """What is called with each line of a command's log, and does something when its first run begins."""
    done: list[object] = []

    def log(text: str) -> None:
        if text.startswith("[") and not done:
            done.append(text)
            work()

    return log


@pytest.mark.parametrize("shared", ["runs", "results"])
def test_the_shard_that_ends_last_writes_the_whole_table(tmp_path: Path, shared: str) -> None:
    said: list[str] = []
    common: dict[str, Any] = {"pick": PICK, "seeds": 1, "settings": CPU}
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
    assert not (out[2] / TABLE_LOCK).exists()
    if shared == "results":
        assert len(rows(tmp_path / "results")) == 6


def test_a_sweep_is_read_and_written_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    plainly = sweep_table.collect

    def noting(*args: Any) -> Any:
        held.append((tmp_path / TABLE_LOCK).exists())
        return plainly(*args)

    monkeypatch.setattr(sweep_table, "collect", noting)
    table = plan("digits", {"lr": [0.1, 0.2], "rounds": 1, "clients": 2, "subset": 60})
    run_sweep(table, tmp_path, settings=CPU)
    assert held == [True]
    assert not (tmp_path / TABLE_LOCK).exists()


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(25):
            with locked(tmp_path / "lock"):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)  # lets the other threads run: without a lock they would get in here
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert not list(tmp_path.iterdir())
