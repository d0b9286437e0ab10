"""What clients are given stays as it is: hooks that change it are refused alike on every executor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpu_stub import stand_in
from small import federation, network
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.batch import Batch
from fedhead.core.errors import BadInput
from fedhead.core.optimizers import SGD
from fedhead.core.tree import Tree, Weights
from fedhead.engine.rounds import Snapshot, run
from fedhead.engine.simulation import Simulation
from fedhead.executors.client_round import local_round
from fedhead.executors.graphs import Graphs
from fedhead.executors.job import Executor, Job
from fedhead.executors.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack import Stack
from fedhead.executors.vectorize import VmapVectorizer
from fedhead.methods.fedavg import FedAvg


class Slots(Executor):
    """Trains clients as a GPU does, in slots."""

    def __init__(self) -> None:
        self.graphs = Graphs(compile=False, slots=2)

    def run(self, job: Job) -> list[Reply]:
        job = job.take(sorted(range(len(job.clients)), key=lambda k: -len(job.rows[k])))
        local_round(job.program, job.stacked_inputs(), job.stacked_batches(), VmapVectorizer(), self.graphs)
        raise AssertionError("not refused")


class Counts(FedAvg):
    def init_client(self, w: Weights, task: Task) -> Tree:
        return Tree(count=torch.zeros(()), mine=Tree(last=torch.zeros(2)))

    def finish(self, w: Weights, client: Client) -> Reply:
        return Reply(send=Tree(model=w), keep=client.state)


class WritesInLoss(Counts):
    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        client.state["count"].add_(1)
        return super().loss(w, batch, client)


class ReplacesInLoss(Counts):
    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        client.state["count"] = client.state["count"] + 1
        return super().loss(w, batch, client)


class WritesInFinish(Counts):
    def finish(self, w: Weights, client: Client) -> Reply:
        client.state["mine"]["last"].add_(client.samples)
        return super().finish(w, client)


class WritesIntoReceived(Counts):
    def start(self, client: Client) -> Weights:
        client.received["model"]["classifier.bias"].zero_()
        return super().start(client)


class ReplacesInCorrect(Counts):
    def correct(self, g: Tree, client: Client) -> Tree:
        client.state["norm"] = g.sq()
        return g


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def simulation(method: FedAvg) -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    return Simulation(federation(), [network()], method, rounds=3, local=local)


@pytest.mark.parametrize("executor", [Loop, Stack, Lanes, Slots])
@pytest.mark.parametrize(
    ("method", "changed"),
    [
        (WritesInLoss, r"client\.state\['count'\]"),
        (ReplacesInLoss, r"client\.state\['count'\]"),
        (WritesInFinish, r"client\.state\['mine'\]\['last'\]"),
        (WritesIntoReceived, r"client\.received\['model'\]\['classifier.bias'\]"),
        (ReplacesInCorrect, r"client\.state\['norm'\]"),
    ],
)
def test_hooks_that_change_what_a_client_is_given_are_refused(
    method: type[FedAvg], changed: str, executor: Callable[[], Executor]
) -> None:
    with pytest.raises(BadInput, match=f"{method.__name__} changes {changed}.*compute a new tensor"):
        run(simulation(method()).using(executor()))


class ReplacesInFinish(Counts):
    """Its own copy of the state is a place like any other to put the new one together."""

    def finish(self, w: Weights, client: Client) -> Reply:
        client.state["count"] = client.state["count"] + client.samples
        return super().finish(w, client)


@pytest.mark.parametrize("executor", [Loop, Stack, Lanes])
def test_finish_may_replace_entries_of_the_state_that_it_returns(executor: Callable[[], Executor]) -> None:
    found = run(simulation(ReplacesInFinish()).using(executor()))
    samples = {k: len(rows) for k, rows in enumerate(found.transport.clients.federation.rows) if len(rows)}
    assert {k: int(state["count"]) for k, state in found.clients.items()} == {k: 3 * n for k, n in samples.items()}


class WritesIntoServer(FedAvg):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        for name, value in replies.mean("model").items():
            server["model"][name].copy_(value)
        return server


class ReplacesInServer(FedAvg):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        for name, value in replies.mean("model").items():
            server["model"][name] = value
        return server


def test_a_rule_that_writes_into_the_server_s_old_state_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"WritesIntoServer.aggregate writes into server\['model'\].*return server\.repl"
    ):
        run(simulation(WritesIntoServer()))


def test_a_rule_may_replace_entries_of_the_server_s_state_and_snapshots_stay_as_they_were() -> None:
    expected: list[Snapshot] = []
    found: list[Snapshot] = []
    run(simulation(FedAvg()), on_round=expected.append)
    run(simulation(ReplacesInServer()), on_round=found.append)
    assert len(found) == 3
    for one, other in zip(expected, found, strict=True):
        for name, value in one.server.leaves().items():
            assert torch.equal(other.server.leaves()[name], value)
