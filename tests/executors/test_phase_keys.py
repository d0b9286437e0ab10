"""Keys of captured graphs: methods with other settings get their own, the least recently used make room."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest
import torch
from gpu_stub import stand_in
from simulations import make_simulation
from small import federation, network
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Weights
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.client_round import Trainer, local_round, train_eagerly
from fedhead.executors.compiling.step import trace
from fedhead.executors.lanes import lane_steps
from fedhead.executors.stack import graph_runner, graphs
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.vectorize import VmapVectorizer
from fedhead.methods.fedavg import FedAvg
from fedhead.models.module_digest import value_digest

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05))


@pytest.fixture(autouse=True)
def captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """No GPU, and "compiled" steps that keep the numbers which they were traced with, as CUDA graphs do."""

    def traced(function: Callable[..., None], arguments: list[Tensor], *_: object) -> Callable[..., None]:
        return trace(function, arguments)

    for module in (graph_runner, lane_steps):
        monkeypatch.setattr(module, "compile_step", traced)
    return stand_in(monkeypatch)


class Scaled(FedAvg):
    """Its printed form, that of FedAvg, says nothing of its settings."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        object.__setattr__(self, "scale", {"of the loss": scale})

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        scale: float = vars(self)["scale"]["of the loss"]
        return scale * super().loss(w, batch, client)


class ByFunction(Scaled):
    """The loss of its phase is a function that captures the setting."""

    def phases(self, task: Task) -> list[Phase]:
        scale = vars(self)["scale"]["of the loss"]
        plain = super(Scaled, self).loss
        return [dataclasses.replace(phase, loss=lambda *words: scale * plain(*words)) for phase in super().phases(task)]


def simulation(method: Scaled) -> Simulation:
    settings: dict[str, Any] = {"rounds": 4, "local": LOCAL, "dtype": torch.float64}
    return make_simulation(federation(), [network("group")], method, **settings)


def trained(run: Simulation, method: Scaled, trainer: Trainer) -> Tensor:
    job = run.jobs(method, run.server, run.states, run.clients.holders, 1)[0].take([0, 1])
    order = sorted(range(2), key=lambda k: -len(job.indices[k]))
    job = job.take(order)
    sent = local_round(job.program, job.stacked_inputs(), job.stacked_batches(), VmapVectorizer(), trainer).send
    return torch.cat([value.flatten() for value in sent.leaves().values()])


@pytest.mark.parametrize("kind", [Scaled, pytest.param(ByFunction, marks=pytest.mark.slow)])
def test_methods_with_other_settings_have_their_own_graphs(kind: type[Scaled], captures: list[object]) -> None:
    run, trainer = simulation(kind()), Graphs(slots=2)
    for scale in (1.0, 3.0, 1.0):
        method = kind(scale)
        torch.testing.assert_close(
            trained(run, method, trainer), trained(run, method, train_eagerly), atol=1e-11, rtol=1e-10
        )
    count = len(captures)
    trained(run, method, trainer)
    assert len(captures) == count
    assert len(trainer._runners) == 2  # what was captured before serves again


def test_the_runner_that_was_used_least_recently_makes_room(
    captures: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MAX_RUNNERS", 2)
    run, trainer = simulation(Scaled()), Graphs(slots=2, compile=False)
    counts = []
    for scale in (1.0, 2.0, 1.0, 3.0, 1.0, 2.0):
        method = Scaled(scale)
        torch.testing.assert_close(
            trained(run, method, trainer), trained(run, method, train_eagerly), atol=1e-11, rtol=1e-10
        )
        assert len(trainer._runners) <= 2
        counts.append(len(captures))
    new = [after > before for before, after in itertools.pairwise([0, *counts])]
    assert new == [True, True, False, True, False, True], "2 was used before 1 when there came 3"


class Cached(Scaled):
    """It computes something of its settings once."""

    @cached_property
    def twice(self) -> float:
        scale: float = vars(self)["scale"]["of the loss"]
        return 2 * scale


def test_a_cached_property_is_no_change() -> None:
    before = value_digest(method := Cached())
    assert method.twice == 2.0
    assert value_digest(method) == before
