"""Lanes without a GPU: streams and graphs are stood in for, what is trained in which lane and when is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from gpu_stub import stand_in
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import Clip, Upload
from fedhead.core.optimizers import SGD
from fedhead.engine.rounds import train_round
from fedhead.engine.simulation import Simulation
from fedhead.executors import lane_steps
from fedhead.executors.compiling.step import trace
from fedhead.executors.job import Executor
from fedhead.executors.lane_groups import STEPS_PER_GRAPH
from fedhead.executors.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.methods import METHODS

LOCAL = LocalTraining(epochs=3, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3))


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """No GPU; what was captured, in order."""
    return stand_in(monkeypatch)


def trained(name: str, executor: Executor, uploads: Sequence[Upload] = ()) -> Simulation:
    settings = {"rounds": 2, "local": LOCAL, "dtype": torch.float64, "uploads": uploads}
    simulation = Simulation(federation(), [network("batch", METHODS[name].head)], METHODS[name](), **settings)
    for number in (1, 2):
        train_round(simulation.using(executor), number)
    return simulation


@pytest.mark.parametrize("uploads", [(), (Clip(0.05),)], ids=["plain", "clipped"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedetf"])
def test_lanes_end_where_the_loop_does(name: str, uploads: Sequence[Upload]) -> None:
    same(trained(name, Lanes(), uploads), trained(name, Loop(), uploads))


def same(found: Simulation, loop: Simulation) -> None:
    for mine, theirs in [(found.server, loop.server), *((found.states[k], loop.states[k]) for k in loop.states.kept)]:
        assert mine.leaves().keys() == theirs.leaves().keys()
        for path, value in theirs.leaves().items():
            torch.testing.assert_close(mine.leaves()[path], value, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("traced", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_compiled_lanes_end_where_the_loop_does(traced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of different numbers of steps share one step, with and without padding; at most it is traced here."""
    made: list[object] = []

    def compiled(function: Callable[..., None], arguments: list[torch.Tensor], changed: int) -> object:
        assert 0 < changed < len(arguments)
        made.append(trace(function, arguments) if traced else function)
        return made[-1]

    monkeypatch.setattr(lane_steps, "compile_step", compiled)
    same(trained("scaffold", Lanes(compile=True)), trained("scaffold", Loop()))
    assert 0 < len(made) <= 2


def test_lanes_that_can_not_be_compiled_go_on_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(lane_steps, "compile_step", fails)
    same(trained("fedavg", Lanes(compile=True)), trained("fedavg", Loop()))
    assert "no compiler here" in caplog.text


def test_graphs_are_captured_in_the_first_round_alone(captures: list[object]) -> None:
    lengths = {-(-len(rows) // LOCAL.batch_size) * LOCAL.epochs for rows in federation().rows if len(rows)}
    assert len(lengths) > 1, "clients must differ in steps, or this says little"
    assert max(lengths) > STEPS_PER_GRAPH
    executor = Lanes()
    simulation = trained("fedavg", executor)
    first = len(captures)
    train_round(simulation.using(executor), 2)
    assert len(captures) == first > 1
    assert executor.preparing > 0
