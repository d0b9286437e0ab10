"""Release of work prepared for a round that does not come; a CPU stands for the GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from simulations import make_simulation, run
from small import federation, network

import fedhead as fh
from fedhead.engine.clients import client_batches
from fedhead.engine.experiment.callbacks import STOP
from fedhead.engine.rounds.observer import Snapshot
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.states.host_states import HostStates
from fedhead.executors.client.base import Executor
from fedhead.executors.stack.stack import Stack

LOCAL = fh.LocalTraining(epochs=2, batch_size=4, optimizer=fh.SGD(lr=0.05))


@pytest.fixture(params=["at once", "background"], autouse=True)
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the samples into tables at once or in the background."""
    if request.param == "background":
        monkeypatch.setattr(client_batches, "FEW", 0)


def simulation(executor: Executor, method: fh.Method | None = None, **settings: Any) -> Simulation:
    """A run that prepares its rounds as beside a GPU; all tensors stay on the CPU."""
    method = method or fh.FedAvg()
    usual: dict[str, Any] = {"rounds": 8, "local": LOCAL}
    made = make_simulation(federation(), [network("group", method.head)], method, executor=executor, **usual | settings)
    made.clients.device = torch.device("cuda")
    return made


def stop_after(round: int, now: Snapshot) -> Any:
    return STOP if now.round == round else None


def test_a_run_that_is_stopped_holds_nothing_of_the_next_round() -> None:
    made = simulation(Stack())
    run(made, evaluate_every=8, on_round=partial(stop_after, 2))
    assert made.round == 2
    assert not made.clients.batches._ahead


def test_a_run_that_is_stopped_holds_no_states_on_the_device() -> None:
    made = simulation(Stack(), fh.Scaffold(), participation=0.5)
    made.states = states = HostStates(made.clients.initial_state, torch.device("cpu"))
    run(made, evaluate_every=8, on_round=partial(stop_after, 2))
    assert states.kept
    assert not states._prefetched
