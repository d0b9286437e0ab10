"""The executors give the same numbers in what `fedhead.testing` does not ask of every method."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from same_trees import assert_same
from simulations import make_simulation
from small import federation, network
from tiers import quick

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD, Adam
from fedhead.core.tree.tree import Weights
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS

LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3), lr_decay=0.9)


def simulate(name: str, norm: str, executor: Executor, local: LocalTraining = LOCAL, rounds: int = 3) -> Simulation:
    simulation = make_simulation(
        federation(),
        [network(norm, METHODS[name].head)],
        METHODS[name](),
        rounds=rounds,
        local=local,
        participation=0.6,
        dtype=torch.float64,
    )
    for number in range(1, rounds + 1):
        train_round(simulation.using(executor), number)
    return simulation


@pytest.mark.parametrize("executor", sorted(select.BUILT_IN.keys() - {"loop", "lanes"}))  # lanes need a GPU: tests/gpu
@pytest.mark.parametrize("name", quick(["fedavg", "scaffold"], "scaffold"))
def test_every_executor_equals_the_loop(name: str, executor: str) -> None:
    found = simulate(name, "batch", select.BUILT_IN[executor]())
    assert_same(found.server, simulate(name, "batch", Loop()).server, 1e-10, 1e-10)


@pytest.mark.parametrize("name", quick(["fedavg", "scaffold", "moon"], "scaffold"))
def test_chunks_of_any_size_give_the_same(name: str) -> None:
    whole = simulate(name, "batch", Stack())
    assert_same(whole.server, simulate(name, "batch", Stack(size=2)).server, 1e-10, 1e-10)
    assert_same(whole.server, simulate(name, "batch", Stack(size=1)).server, 1e-10, 1e-10)


@pytest.mark.parametrize("optimizer", [SGD(0.05, 0.9), Adam(0.01, weight_decay=1e-3)])
def test_persistent_optimizer_state_is_the_same_on_both(optimizer: SGD | Adam) -> None:
    local = dataclasses.replace(LOCAL, optimizer=optimizer, persistent=True, drop_last=True)
    loop, stack = (simulate("fedavg", "group", executor, local) for executor in (Loop(), Stack()))
    assert_same(loop.server, stack.server, 1e-10, 1e-10)
    fresh = simulate("fedavg", "group", Loop(), dataclasses.replace(local, persistent=False))
    assert (loop.server["model"] - fresh.server["model"]).sq() > 1e-12


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    a, b = simulate("fedavg", "batch", Loop()), simulate("fedavg", "batch", Loop())
    assert_same(a.server, b.server)
    other = make_simulation(
        federation(), [network("batch")], METHODS["fedavg"](), rounds=3, local=LOCAL, seed=1, dtype=torch.float64
    )
    train_round(other.using(Loop()), 1)
    assert (other.server["model"] - a.server["model"]).sq() > 1e-12


def test_running_statistics_move_and_are_averaged() -> None:
    simulation = simulate("fedavg", "batch", Stack(), rounds=1)
    model = simulation.server["model"]
    assert isinstance(model, Weights)
    assert len(model.stats) == 2
    assert all((t - start).abs().max() > 1e-3 for t, start in zip(model.stats.values(), (0.0, 1.0), strict=True))
