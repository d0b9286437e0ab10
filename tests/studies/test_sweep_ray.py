"""Sweeps over Ray, with a stand-in for Ray: what workers send makes the folder, and a lost one's runs go on.

`make test-long` has the same with Ray itself (test_sweep_killed.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray_stub import Ray

from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.runs import environment
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT
from fedhead.studies import ray_engine
from fedhead.studies.ray_engine import RayEngine
from fedhead.studies.run_transfer import place, read_files
from fedhead.studies.sweep import ray_runs, sweep_job
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells

LOOP = Compute(executor="loop", device="cpu")
TABLE = plan("digits", {"lr": [0.1, 0.2], "clients": 3, "rounds": 2, "local_epochs": 1, "subset": 60})


@pytest.fixture
def with_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Ray], RayEngine]:
    """Return a function that makes an engine on a stand-in for Ray."""
    monkeypatch.setattr(environment, "_commit", lambda: None)  # asking git takes longer than these runs
    monkeypatch.setattr(ray_runs, "EVERY", 60.0)  # a stand-in's worker does not die: it sends when it has ended
    monkeypatch.setattr(ray_runs.tempfile, "gettempdir", lambda: str(tmp_path / "worker"))

    def make(ray: Ray) -> RayEngine:
        monkeypatch.setattr(ray_engine, "importlib", SimpleNamespace(import_module=lambda name: ray))
        return RayEngine()

    return make


def test_a_lost_worker_s_runs_go_on_and_none_is_trained_twice(
    with_ray: Callable[[Ray], RayEngine],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    record, trained = RunFolder.record, list[int]()
    monkeypatch.setattr(RunFolder, "record", lambda self, row: trained.append(row["round"]) or record(self, row))
    ray = Ray(lost=1)
    result = run_sweep(TABLE, tmp_path / "sweep", compute=LOOP, engine=with_ray(ray))
    assert [row.finished for row in result.rows] == [1, 1]
    assert (ray.begun, ray.most, trained) == (3, 2, [1, 2, 1, 2])
    assert "a worker was lost (RayError): another one takes over" in caplog.text
    path, recipe = next(iter(sweep_cells(TABLE)[0].runs.items()))
    alone = execute(recipe, tmp_path / "alone", LOOP)
    found = RunFolder.open(tmp_path / "sweep" / path).result() or {}
    assert (found["accuracy"], found["run"]) == (alone["accuracy"], str(tmp_path / "sweep" / path))
    assert list((tmp_path / "worker").iterdir()) == []


@pytest.mark.slow
def test_a_cell_that_loses_every_worker_fails_and_the_others_go_on(
    with_ray: Callable[[Ray], RayEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_engine, "_LOSSES", 1)
    monkeypatch.setattr(sweep_job, "place", lambda files, folder: None)  # nothing arrives
    result = run_sweep(TABLE, tmp_path / "sweep", compute=LOOP, engine=with_ray(Ray(lost=4)))
    assert list(result.failures) == ["lr=0.1, seed 0", "lr=0.2, seed 0"]
    assert result.failures["lr=0.1, seed 0"] == "its worker was lost 2 times, RayError"


def test_a_worker_goes_on_from_the_checkpoint_that_it_is_sent(
    with_ray: Callable[[Ray], RayEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_ray(Ray())
    recipe = next(iter(sweep_cells(TABLE)[0].runs.values()))
    record = RunFolder.record

    def stop(self: RunFolder, row: Any) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt
        record(self, row)

    monkeypatch.setattr(RunFolder, "record", stop)
    with pytest.raises(KeyboardInterrupt):
        execute(recipe, tmp_path / "stopped", LOOP)
    assert (tmp_path / "stopped" / CHECKPOINT).exists()
    trained: list[int] = []
    monkeypatch.setattr(RunFolder, "record", lambda self, row: trained.append(row["round"]) or record(self, row))
    held = {"run": read_files(tmp_path / "stopped")}
    for changed, failures in ray_runs.run_streaming("name", {"run": recipe}, held, LOOP):
        assert not failures
        for files in changed.values():
            place(files, tmp_path / "stopped")
    assert trained == [2]
    monkeypatch.undo()
    assert RunFolder.open(tmp_path / "stopped").finished


def test_what_ray_can_not_give_is_refused(
    with_ray: Callable[[Ray], RayEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_ray(Ray(cpus=0.5))
    with pytest.raises(BadInput, match=r"--cpus-per-cell 1: the Ray cluster has 0.5 CPUs in all"):
        run_sweep(TABLE, tmp_path / "a", compute=LOOP, engine=engine)
    with pytest.raises(BadInput, match="--device cuda: with Ray a cell has the GPUs that it is given"):
        run_sweep(TABLE, tmp_path / "b", compute=Compute(device="cuda"), engine=engine)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(ray_engine, "importlib", SimpleNamespace(import_module=missing))
    with pytest.raises(BadInput, match=r"--engine ray needs Ray: pip install 'fedhead\[ray\]'"):
        RayEngine()
