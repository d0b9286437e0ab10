"""On a GPU: client states in the host's memory give the numbers of those on the device."""

from __future__ import annotations

import pytest
import torch
from simulations import make_simulation, run
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.observer import FinishedRun, Snapshot
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.states.client_states import ClientStates
from fedhead.engine.states.host_states import HostStates
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.precision import set_precision
from gpu import GPU

pytestmark = GPU
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.02, momentum=0.9))


def simulate(method: str, on_host: bool, participation: float = 0.5) -> Simulation:
    set_precision("fp32")
    settings = {"rounds": 6, "local": LOCAL, "participation": participation, "device": "cuda"}
    made = make_simulation(federation(), [network("batch")], METHODS[method](), **settings)
    if not on_host:
        made.states = ClientStates(made.clients.initial_state)
    return made.using(Stack(graphs=Graphs(compile=False)))


def same(one: FinishedRun, other: FinishedRun) -> None:
    pairs = [(one.server, other.server), *((one.clients[k], other.clients[k]) for k in other.clients)]
    for mine, theirs in pairs:
        for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
            assert torch.equal(a.cpu(), b.cpu())


@pytest.mark.parametrize("method", ["scaffold", "fedrep"])
def test_rounds_have_the_same_numbers_and_resume_exactly(method: str) -> None:
    expected = run(simulate(method, on_host=False))
    found: list[Snapshot] = []
    whole = run(simulate(method, on_host=True), on_round=found.append)
    assert isinstance(whole.transport.states, HostStates)
    same(whole, expected)
    same(run(simulate(method, on_host=True), resume=found[2]), expected)
    assert all(t.device.type == "cpu" for kept in whole.clients.values() for t in kept.tensors())


def test_where_all_clients_take_part_states_stay_on_the_device() -> None:
    assert type(simulate("scaffold", on_host=True, participation=1.0).states) is ClientStates


def test_many_large_states_pass_through_little_memory() -> None:
    device = torch.device("cuda")
    states = HostStates(lambda client: Tree(w=torch.zeros(1 << 20, device=device)), device)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        for begin in range(0, 64, 4):
            now, later = range(begin, begin + 4), range(begin + 4, begin + 8)
            mine = [states[k] for k in now]
            states.prefetch(later, now)
            for k, state in zip(now, mine, strict=True):
                states[k] = Tree(w=state["w"].to(device) + k + 1)
    for k, state in states.kept.items():
        assert state["w"].is_pinned()
        assert torch.equal(state["w"], torch.full((1 << 20,), 3.0 * (k + 1)))
    assert torch.cuda.max_memory_allocated() - held < 20 * 4 * (1 << 20)
