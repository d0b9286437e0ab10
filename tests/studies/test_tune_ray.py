"""Tuning over Ray: one process has the study, workers train, and what a lost worker had is trained again."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray_stub import Ray

import fedhead as fh
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import load
from fedhead.studies import ray_engine
from fedhead.studies.tune import ray_trials
from fedhead.studies.tune.study import Study

pytest.importorskip("optuna")
RECIPE = load("digits", ["subset=60", "rounds=3", "local_epochs=1", "clients=2", "model=mlp(hidden=[4])"])
SPACE = "lr=log(0.01, 1)"


def _tune(out: Path, space: str = SPACE, **more: Any) -> fh.TuneResult:
    usual: dict[str, Any] = {
        "sampler": "random",
        "pruner": "none",
        "compute": Compute(device="cpu", executor="loop"),  # not chosen by timing: executors round differently
    }
    return fh.tune(RECIPE, space, out=out, objective="loss", **(usual | more))


def _use(monkeypatch: pytest.MonkeyPatch, ray: Ray) -> None:
    for module in (ray_engine, ray_trials):
        monkeypatch.setattr(module, "importlib", SimpleNamespace(import_module=lambda name: ray))


@pytest.mark.slow
def test_a_lost_worker_s_trials_are_trained_again_with_the_values_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ray = Ray(lost=1)
    _use(monkeypatch, ray)
    found = _tune(tmp_path / "ray", trials=4, engine="ray")
    alone = _tune(tmp_path / "alone", trials=4)
    assert [(one.values, one.value, one.trained_rounds) for one in found.trials] == [
        (one.values, one.value, one.trained_rounds) for one in alone.trials
    ]
    assert (ray.begun, ray.most) == (5, 2)
    assert "a worker was lost (RayError): another one takes over" in caplog.text
    assert (tmp_path / "ray" / "best.yaml").exists()


@pytest.mark.slow
def test_trials_that_lose_their_worker_too_often_or_diverge_fail_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_LOSSES", 0)
    _use(monkeypatch, Ray(lost=1))
    found = _tune(tmp_path, "lr=choice(0.1, 1e30)", trials=6, engine="ray")
    lost, trained = found.trials[:1], found.trials[1:]
    assert {(one.state, one.reason) for one in lost} == {("failed", "its worker was lost 1 times, RayError")}
    assert {(one.values["lr"], one.state) for one in trained} == {(0.1, "complete"), (1e30, "failed")}
    assert "diverged: client 0" in next(one.reason for one in trained if one.state == "failed")
    with (tmp_path / "trials.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == [one.state for one in found.trials]


@pytest.mark.slow
def test_the_process_with_the_study_says_which_trials_end_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch, Ray(cpus=1))
    whole, begun = ray_trials.PrunedTrials.has, threading.Semaphore(0)

    def report(self: Study, trial: Any, number: int, value: float) -> bool:
        begun.release()
        return trial.number == 1

    def has(self: ray_trials.PrunedTrials, number: int) -> bool:
        begun.acquire()  # in its second round the worker finds what was decided after the first
        return whole(self, number)

    monkeypatch.setattr(Study, "report", report)
    monkeypatch.setattr(ray_trials.PrunedTrials, "has", has)
    found = _tune(tmp_path, trials=2, engine="ray")
    assert [one.state for one in found.trials] == ["complete", "pruned"]


def test_resources_and_engines_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(fh.BadInput, match="resources of a Ray cluster: add --engine ray"):
        _tune(tmp_path, gpus_per_worker=1.0)
    with pytest.raises(fh.BadInput, match="give 'local' or 'ray'"):
        _tune(tmp_path, engine="slurm")


SLOW = """
import os, time
import fedhead as fh


class Slow(fh.FedAvg):
    def aggregate(self, server, replies, task):
        time.sleep(0.3)
        with open(os.environ["SLOW_LOG"], "a") as file:
            file.write(f"{os.getpid()}\\n")
        return super().aggregate(server, replies, task)
"""
SCRIPT = """
import fedhead as fh, ray
from fedhead.recipes.recipe import load
from fedhead.engine.experiment.compute import Compute

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
recipe = load("digits", ["subset=60", "rounds=6", "local_epochs=1", "clients=2", "model=mlp(hidden=[4])",
                         "method=slow.py:Slow"])
found = fh.tune(recipe, "lr=log(0.01, 1)", out="study", trials=6, sampler="random", pruner="none",
                engine="ray", compute=Compute(device="cpu"))
print(len(found.trials), Counter(one.state for one in found.trials))
"""


@pytest.mark.long
def test_ray_loses_a_worker_in_mid_trial(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "script.py").write_text("from collections import Counter\n" + SCRIPT)
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SLOW_LOG": str(log)},
    )
    victim = 0
    while not victim and process.poll() is None:
        time.sleep(0.1)
        rounds = Counter(log.read_text().split()) if log.exists() else Counter()
        victim = next((int(pid) for pid, count in rounds.items() if count == 4), 0)
    if victim:
        os.kill(victim, signal.SIGKILL)
    said, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    assert said.splitlines()[-1] == "6 Counter({'complete': 6})"
    assert complaints.count("a worker was lost") == 1
    trained = len(log.read_text().split())
    assert 6 * 6 < trained <= 6 * 6 + 5, "the rounds of the lost trial, and no others, were trained again"
