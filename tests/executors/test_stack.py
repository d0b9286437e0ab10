"""The stack when memory is short."""

from __future__ import annotations

import pytest
import torch
from small import federation, network

from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.errors import BadInput
from fedhead.core.optimizers import SGD
from fedhead.engine.rounds import train_round
from fedhead.engine.simulation import Simulation
from fedhead.executors.job import Job
from fedhead.executors.stack import Stack
from fedhead.methods import METHODS


class Small(Stack):
    """A stack on a device that holds only so many clients at once."""

    def __init__(self, budget: int):
        super().__init__()
        self.budget = budget

    def _run_stack(self, job: Job) -> list[Reply]:
        if len(job.clients) > self.budget:
            raise torch.OutOfMemoryError("full")
        return super()._run_stack(job)


def simulate(stack: Stack) -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    made = Simulation(federation(), [network("batch")], METHODS["moon"](), rounds=1, local=local, dtype=torch.float64)
    train_round(made.using(stack), 1)
    return made


def test_out_of_memory_halves_the_stack_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    stack = Small(budget=2)
    found, plain = simulate(stack), simulate(Stack())
    assert stack.size == 2
    assert "out of memory with 4 clients at once: continuing with 2" in caplog.text
    for path, value in plain.server.leaves().items():
        torch.testing.assert_close(found.server.leaves()[path], value, atol=1e-10, rtol=1e-10)


def test_not_even_one_client() -> None:
    with pytest.raises(BadInput, match="not even one client fits"):
        simulate(Small(budget=0))
