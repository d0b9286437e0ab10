"""The plain loop: side by side on several threads it gives, to the bit, what it gives alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from same_trees import assert_same
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import Diverged
from fedhead.core.training.optimizers import SGD
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.methods import METHODS


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def simulate(count: int, lr: float = 0.05) -> Simulation:
    torch.set_num_threads(count)
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr, momentum=0.9))
    simulation = make_simulation(federation(), [network("batch")], METHODS["moon"](), rounds=2, local=local)
    for number in (1, 2):
        train_round(simulation, number)
    assert torch.get_num_threads() == count
    return simulation


def test_loops_side_by_side_give_the_same_bits(threads: None) -> None:
    alone, beside = simulate(1), simulate(3)
    assert_same(beside.server, alone.server)
    for client, state in alone.states.kept.items():
        assert_same(beside.states[client], state)


@pytest.mark.parametrize("lr", [1e30, 1e39])  # single precision has no room for the second
def test_a_failure_in_one_loop_is_raised_and_the_threads_are_as_before(threads: None, lr: float) -> None:
    with pytest.raises(Diverged, match="client"):
        simulate(3, lr)
    assert torch.get_num_threads() == 3
