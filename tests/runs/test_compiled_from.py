"""The record says from which round on steps were compiled, and a resumed run keeps to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from simulations import RowFunction, make_simulation
from small import federation, network

import fedhead as fh
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.executors import select
from fedhead.executors.client.base import ExecutorReport
from fedhead.executors.client.job import Job
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.recipes.recipe import load
from fedhead.runs.run import execute

RECIPE = load("digits", ["rounds=4", "model.hidden=[8]", "clients=3", "subset=120", "evaluate_every=4"])


class Compiling(Loop):
    """A loop that says it is compiled from a round on, or from where it is asked to be."""

    name = "loop"

    def __init__(self, ready: int):
        self.ready, self.compiled = ready, False
        self.asked: dict[int, bool | None] = {}

    def train_all(self, jobs: list[Job]) -> list[list[Reply]]:
        self.asked[jobs[0].round] = asked = jobs[0].compiled
        self.compiled = jobs[0].round >= self.ready if asked is None else asked
        return super().train_all(jobs)

    def report(self) -> ExecutorReport:
        return ExecutorReport(compiled=self.compiled)


class Killed(BaseException):
    """Stands for a kill: nothing on the way catches it."""


def environment(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "environment.json").read_text())
    return found


def stop_at(number: int) -> Any:
    def on_row(row: dict[str, Any]) -> None:
        if row["round"] == number:
            raise Killed

    return on_row


def test_a_resumed_run_is_compiled_from_the_same_round_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fedhead")
    with pytest.raises(Killed):
        execute(RECIPE, tmp_path, Compute(executor=Compiling(ready=2)), observers=[RowFunction(stop_at(3))])
    assert environment(tmp_path)["compiled_from"] == 2
    assert "round 2: steps are compiled from here on" in caplog.text
    again = Compiling(ready=99)
    assert execute(RECIPE, tmp_path, Compute(executor=again), resume=True)["compiled_from"] == 2
    assert again.asked == dict.fromkeys(again.asked, True)
    assert max(again.asked) == 4
    assert fh.load(tmp_path).compiled_from == 2


def test_a_run_that_has_to_repeat_rounds_is_not_compiled_before(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        execute(RECIPE, tmp_path, Compute(executor=Compiling(ready=9)), observers=[RowFunction(stop_at(1))])
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({**environment(tmp_path), "compiled_from": 3}))  # as if killed in round 3
    again = Compiling(ready=1)
    assert execute(RECIPE, tmp_path, Compute(executor=again), resume=True)["compiled_from"] == 3
    assert again.asked == {2: False, 3: True, 4: True}


def test_a_run_that_was_not_compiled_yet_says_so_and_may_be_later(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        execute(RECIPE, tmp_path, Compute(executor=Compiling(ready=9)), observers=[RowFunction(stop_at(2))])
    assert environment(tmp_path)["compiled_from"] is None
    again = Compiling(ready=1)
    found = execute(RECIPE, tmp_path, Compute(executor=again), resume=True)
    assert found["compiled_from"] == min(again.asked) > 1


def test_the_mode_is_kept_on_resuming_and_another_one_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        execute(RECIPE, tmp_path, Compute(executor="loop", compile="never"), observers=[RowFunction(stop_at(1))])
    assert environment(tmp_path)["compile"] == "never"
    with pytest.raises(BadInput, match="was begun with compile never"):
        execute(RECIPE, tmp_path, Compute(compile="wait"), resume=True)
    assert execute(RECIPE, tmp_path, resume=True)["compiled_from"] is None


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown compile 'waits': did you mean 'wait'"):
        fh.run(federation(), network(), rounds=1, compile="waits")
    assert call(["run", "digits", "--compile", "soon", "--out", str(tmp_path / "run")]) != 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("mode", "pays", "compiles", "background"),
    [
        ("auto", True, True, True),
        ("wait", True, True, False),
        ("never", True, False, False),
        ("auto", False, False, False),
    ],
)
def test_the_mode_decides_how_a_stack_is_compiled(
    mode: str, pays: bool, compiles: bool, background: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "pays_to_compile", lambda simulation: pays)
    local = LocalTraining(epochs=1, batch_size=4)
    simulation = make_simulation(federation(), [network()], METHODS["fedavg"](), rounds=1, local=local)
    for device in ("cpu", "cuda"):
        simulation.clients.device = torch.device(device)
        found = select.by_name("stack", simulation, mode)
        assert isinstance(found, Stack)
        assert found.graphs.compile == (compiles and device == "cuda")
        assert (found.graphs.compiler is not None) == (background and device == "cuda")


def test_a_stage_after_the_run_is_compiled_when_the_run_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(replace(RECIPE, rounds=1), tmp_path, Compute(device="cpu", executor="stack", compile="never"))
    asked: list[object] = []
    monkeypatch.setattr(select, "by_name", lambda name, simulation, compile, folders: asked.append(compile) or Stack())
    fh.load(tmp_path).calibrate(fh.CCVR(samples=10, epochs=1))
    assert asked == ["never"]
