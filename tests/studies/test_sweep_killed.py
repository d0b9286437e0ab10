"""A sweep that is killed at random moments, and one over Ray that loses a worker: nothing is lost or run twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from same_runs import assert_same_runs

from fedhead.core.tree.treefile import load_tree
from fedhead.engine.experiment.compute import Compute
from fedhead.runs import environment
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, RESULT
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


SCRIPT = """
import sys, warnings
import ray

import fedhead as fh
warnings.simplefilter("ignore")
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
axes = {"lr": [0.05, 0.1, 0.2], "clients": 3, "rounds": 12, "local_epochs": 1}
axes["callbacks"] = [f"slow.py:Slow(log={sys.argv[1]})"]
found = fh.sweep("digits", axes, out="sweep", engine="ray", executor="loop", device="cpu", progress=True)
print(len(found), all(one.finished for one in found))
"""
SLOW = """
import os, time, uuid
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Slow(fh.Callback):
    '''Take time, and say so; what identifies the run is in its checkpoint.'''

    log: str = ""

    def after_round(self, row, memory):
        memory.setdefault("id", uuid.uuid4().hex)
        with open(self.log, "a") as file:
            file.write(f"{memory['id']} {row['round']} {os.getpid()}\\n")
        time.sleep(0.4)
"""


def test_ray_loses_a_worker_in_mid_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "script.py").write_text(SCRIPT)
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "script.py", str(log)], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    victim: list[str] = []
    while not victim and process.poll() is None:
        time.sleep(0.1)
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        victim = next(([run, pid] for run, number, pid in lines if int(number) == 8), [])
    if victim:
        os.kill(int(victim[1]), signal.SIGKILL)
    said, complaints = process.communicate(timeout=600)
    assert process.returncode == 0, complaints
    assert said.splitlines()[-1] == "3 True"
    assert complaints.count("a worker was lost") == 1
    rounds: dict[str, Counter[int]] = {}
    for run, number, _ in (line.split() for line in log.read_text().splitlines()):
        rounds.setdefault(run, Counter())[int(number)] += 1
    assert len(rounds) == 3, "no run was begun a second time"
    assert all(sorted(counts) == list(range(1, 13)) for counts in rounds.values())
    again = {run: [number for number, count in counts.items() if count > 1] for run, counts in rounds.items()}
    assert [run for run, numbers in again.items() if numbers] in ([victim[0]], [])
    assert min(again[victim[0]], default=9) > 1, "it went on from its checkpoint"
    print(f"killed after round 8; rounds that were run again: {again[victim[0]]}")
    monkeypatch.chdir(tmp_path)
    for path in sorted((tmp_path / "sweep" / "runs").glob("*/seed-0")):
        run = RunFolder.open(path)
        execute(run.recipe, tmp_path / "single" / path.parent.name, LOOP)
        a, b = (load_tree(folder / CHECKPOINT)[0].leaves() for folder in (path, tmp_path / "single" / path.parent.name))
        assert all(bool((a[leaf] == b[leaf]).all()) for leaf in a)
        assert (run.result() or {})["run"] == str(Path("sweep") / path.relative_to(tmp_path / "sweep"))
