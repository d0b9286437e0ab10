"""A sweep that is killed at random moments: nothing is lost or run twice."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from same_runs import assert_same_runs

from fedhead.engine.experiment.compute import Compute
from fedhead.runs import environment
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import RESULT
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
LOOP = Compute(executor="loop", device="cpu")
AXES = {
    "method": ["fedavg", "fedprox(mu=0.1)", "scaffold"],
    "partition": ["dirichlet(0.1)", "dirichlet(0.5)"],
    "stages": [[], ["ccvr"]],
    "stage.ccvr.samples": 20,
    "stage.ccvr.epochs": 1,
    "momentum": 0,
    "rounds": 3,
    "local_epochs": 1,
    "clients": 4,
    "subset": 300,
}


def test_twelve_cells_with_three_seeds_killed_five_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_commit", lambda: None)
    table, out = plan("digits", AXES), tmp_path / "sweep"
    runs = {path: recipe for cell in sweep_cells(table, 3) for path, recipe in cell.runs.items()}
    assert len(runs) == 36
    begin = time.monotonic()
    for path, recipe in runs.items():
        execute(recipe, tmp_path / "single" / path, LOOP)
    single = time.monotonic() - begin
    log, record = tmp_path / "rounds", RunFolder.record

    def logged(self: RunFolder, row: Any) -> None:
        with log.open("a") as file:
            file.write(f"{self.path.relative_to(out)}\n")
        record(self, row)

    monkeypatch.setattr(RunFolder, "record", logged)
    rng, kills, finished = random.Random(0), 0, list[int]()
    while kills < 5:
        done = {path for path in runs if (out / path / RESULT).exists()}
        stamps = {path: (out / path / RESULT).stat().st_mtime_ns for path in done}
        before = log.read_text().splitlines() if log.exists() else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of threads; this process has none that hold a lock
            child = os.fork()
        if not child:
            run_sweep(table, out, seeds=3, compute=LOOP)
            os._exit(0)
        time.sleep(0.1 + rng.random() * single / 8)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "it ended before it was killed"
        kills += 1
        new = log.read_text().splitlines()[len(before) :] if log.exists() else []
        assert not {str(path) for path in done} & set(new)  # no round of a finished run
        assert stamps == {path: (out / path / RESULT).stat().st_mtime_ns for path in done}
        finished.append(len(done))
    result = run_sweep(table, out, seeds=3, compute=LOOP)
    assert not result.failures
    assert all((row.finished, row.runs) == (3, 3) for row in result.rows)
    for path in runs:
        assert_same_runs(tmp_path / "single" / path, out / path)
    rounds = Counter(log.read_text().splitlines())
    trained = sum(rounds.values())
    assert len(rounds) == 18, "cells that differ in their stages train once"
    assert trained <= 18 * 3 + 5 * 3, "at most the rounds of the run that each kill met are repeated"
    print(f"finished before the kills: {finished}; {trained} rounds for 54; single runs took {single:.1f} s")
