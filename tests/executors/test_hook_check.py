"""First-use check of users' components: hooks that are not pure are refused alike on every executor."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar
from weakref import ref

import numpy as np
import pytest
import torch
from gpu_stub import stand_in
from simulations import make_simulation, run
from small import federation, network
from torch import Tensor, nn

from fedhead.aggregators.base import Aggregator
from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Phase, Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.rounds.rounds import run_stage
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client import hook_check
from fedhead.executors.client.base import Executor
from fedhead.executors.client.hook_check import check_client_hooks
from fedhead.executors.lanes.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods.fedavg import FedAvg
from fedhead.methods.fedprox import FedProx
from fedhead.models.wrap import split
from fedhead.samplers.base import Sampler
from fedhead.stages.ridge import Ridge


class Counts(FedAvg):
    def init_client(self, w: Weights, task: Task) -> Tree:
        return Tree(count=w["classifier.bias"].new_zeros(()), mine=Tree(last=w["classifier.bias"].new_zeros(2)))

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


class WritesByData(Counts):
    """Torch does not count what is written through `data`."""

    def start(self, client: Client) -> Weights:
        client.received["model"]["classifier.bias"].data.add_(1)
        return super().start(client)


class WritesByNumpy(Counts):
    def start(self, client: Client) -> Weights:
        client.received["model"]["classifier.bias"].numpy()[:] += 1
        return super().start(client)


class ReplacesInCorrect(Counts):
    def correct(self, g: Tree, client: Client) -> Tree:
        client.state["norm"] = g.sq()
        return g


class ReplacesInReceived(Counts):
    def start(self, client: Client) -> Weights:
        client.received["model"]["classifier.bias"] = client.state["count"].expand(3)
        return super().start(client)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)


def simulation(method: FedAvg) -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    return make_simulation(federation(), [network()], method, rounds=3, local=local, dtype=torch.float64)


@pytest.mark.parametrize("executor", [Loop, Stack])
@pytest.mark.parametrize(
    ("method", "does"),
    [
        (WritesInLoss, r"writes into client\.state\['count'\]"),
        (ReplacesInLoss, r"writes into client\.state\['count'\]"),
        (WritesInFinish, r"writes into client\.state\['mine'\]\['last'\]"),
        (WritesIntoReceived, r"writes into client\.received\['model'\]\['classifier.bias'\]"),
        (WritesByData, r"writes into client\.received\['model'\]\['classifier.bias'\]"),
        (WritesByNumpy, r"writes into client\.received\['model'\]\['classifier.bias'\]"),
        (ReplacesInCorrect, r"writes into client\.state\['norm'\]"),
        (ReplacesInReceived, r"writes into client\.received\['model'\]\['classifier.bias'\]"),
    ],
)
def test_hooks_that_change_what_a_client_is_given_are_refused(
    method: type[FedAvg], does: str, executor: Callable[[], Executor]
) -> None:
    with pytest.raises(BadInput, match=f"{method.__name__} {does}.*let finish return what the client keeps"):
        run(simulation(method()).using(executor()))


class WritesIntoCounts(FedAvg):
    def finish(self, w: Weights, client: Client) -> Reply:
        client.counts.add_(1)
        return super().finish(w, client)


class DecaysRate(FedAvg):
    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        client.lr.mul_(0.9)
        return super().loss(w, batch, client)


class CountsRounds(FedAvg):
    """Its loss is another one each time, which is not because of the padding."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return super().loss(w, batch, client) * client.round.add_(1)


class HalvesWeights(FedAvg):
    def finish(self, w: Weights, client: Client) -> Reply:
        client.total(lambda batch: Tree(n=batch.weight.mul_(0.5).sum()))
        return super().finish(w, client)


@pytest.mark.parametrize("executor", [Loop, Stack])
@pytest.mark.parametrize(
    ("method", "what"),
    [
        (WritesIntoCounts, "client.counts"),
        (DecaysRate, "client.lr"),
        (CountsRounds, "client.round"),
        (HalvesWeights, "batch.weight"),
    ],
)
def test_hooks_that_change_what_a_client_sees_are_refused(
    method: type[FedAvg], what: str, executor: Callable[[], Executor]
) -> None:
    with pytest.raises(BadInput, match=f"{method.__name__} writes into {what},.*compute a new tensor"):
        run(simulation(method()).using(executor()))


class ClipsExtractor(FedAvg):
    """Writes into weights that it does not train."""

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.loss, trains=("classifier",)),)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        w["extractor.body.0.weight"].copy_(w["extractor.body.0.weight"].clamp(-0.1, 0.1))
        return super().loss(w, batch, client)


@pytest.mark.parametrize("executor", [Loop, Lanes])
def test_a_loss_that_writes_into_what_it_does_not_train_is_refused(executor: Callable[[], Executor]) -> None:
    with pytest.raises(BadInput, match=r"ClipsExtractor writes into .*\['extractor.body.0.weight'\]"):
        run(simulation(ClipsExtractor()).using(executor()))


class WritesInStage(Ridge):
    def finish(self, w: Weights, client: Client) -> Reply:
        client.received["model"]["classifier.bias"].zero_()
        return super().finish(w, client)


@pytest.mark.parametrize("executor", [Loop, Stack])
def test_a_stage_that_writes_into_what_clients_receive_is_refused(executor: Callable[[], Executor]) -> None:
    finished = run(simulation(FedAvg()).using(executor()))
    with pytest.raises(BadInput, match=r"WritesInStage writes into client\.received\['model'\]"):
        run_stage(finished.transport, WritesInStage())


class WritesInEvaluation(Counts):
    def personal_model(self, client: Client) -> Weights:
        client.state["count"].add_(1)
        return super().personal_model(client)


@pytest.mark.parametrize("executor", [Loop, Stack])
def test_a_personal_model_that_writes_into_the_state_is_refused(executor: Callable[[], Executor]) -> None:
    with pytest.raises(BadInput, match=r"WritesInEvaluation writes into client\.state\['count'\]"):
        run(simulation(WritesInEvaluation()).using(executor()))


class WritesInAggregate(FedAvg):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        for name, value in replies.mean("model").items():
            server["model"][name].copy_(value)
        return server


class WritesInGlobalModel(FedAvg):
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        server["model"]["classifier.bias"].zero_()
        return super().global_model(server, task)


class WritesByDataInAggregate(FedAvg):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        for name, value in replies.mean("model").items():
            server["model"][name].data.copy_(value)
        return server


class ReplacesInPerClient(FedAvg):
    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        server["model"]["classifier.bias"] = torch.full((3,), float(client))
        return Tree()


class ReplacesInServer(FedAvg):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        for name, value in replies.mean("model").items():
            server["model"][name] = value
        return server


@pytest.mark.parametrize(
    ("method", "hook"),
    [
        (WritesInAggregate, "aggregate"),
        (WritesByDataInAggregate, "aggregate"),
        (ReplacesInServer, "aggregate"),
        (WritesInGlobalModel, "global_model"),
        (ReplacesInPerClient, "per_client"),
    ],
)
def test_a_hook_that_writes_into_the_server_s_state_is_refused(method: type[FedAvg], hook: str) -> None:
    said = rf"{method.__name__}.{hook} writes into server\['model'\].*compute a new tensor"
    with pytest.raises(BadInput, match=said):
        run(simulation(method()))


class AddsToReplies(FedAvg):
    """The server adds the replies of all clients to the first one."""

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        total: Weights = replies.sent[0]["model"]
        for other in replies.sent[1:]:
            for name, value in other["model"].items():
                total[name] += value
        return server.replace(model=total / len(replies))


@pytest.mark.parametrize("executor", [Loop, Stack, Lanes])
def test_a_rule_that_writes_into_replies_is_refused(executor: Callable[[], Executor]) -> None:
    with pytest.raises(BadInput, match=r"AddsToReplies.aggregate writes into replies.sent\[0\]\['model'\]"):
        run(simulation(AddsToReplies()).using(executor()))


# -- draws from global generators ---------------------------------------------------------------------
class Draws(FedAvg):
    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return super().loss(w, batch, client) * torch.rand(())


class DrawsInFinish(FedAvg):
    def finish(self, w: Weights, client: Client) -> Reply:
        return super().finish(w * np.random.rand(), client)  # noqa: NPY002 (the fault)


class DrawsInAggregate(FedAvg):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        random.random()
        return super().aggregate(server, replies, task)


class DrawsInModel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * (0.9 + 0.1 * torch.rand_like(x))


@pytest.mark.parametrize("executor", [Loop, Stack])
@pytest.mark.parametrize(
    ("method", "whose"),
    [(Draws, "Draws draws from torch"), (DrawsInFinish, "draws from numpy"), (DrawsInAggregate, "draws from random")],
)
def test_draws_from_global_generators_are_refused(
    method: type[FedAvg], whose: str, executor: Callable[[], Executor]
) -> None:
    with pytest.raises(BadInput, match=rf"{whose}'s global generator.*draw by key, fh\.random\.uniform"):
        run(simulation(method()).using(executor()))


def test_a_model_that_draws_is_refused() -> None:
    model = split(nn.Sequential(nn.Flatten(), DrawsInModel(), nn.Linear(36, 3)))
    made = make_simulation(federation(), [model], FedAvg(), rounds=1, local=LocalTraining(batch_size=4))
    with pytest.raises(BadInput, match=r"draws from torch's global generator.*nn\.Dropout"):
        run(made)


def test_a_real_site_may_draw() -> None:
    (job,) = simulation(FedAvg()).jobs_of_round(1)
    job = replace(job, program=replace(job.program, algorithm=Draws()))
    check_client_hooks(job, trains=True, refuse_draws=False)
    with pytest.raises(BadInput, match="draws from torch"):
        check_client_hooks(replace(job, program=replace(job.program, algorithm=Draws())), trains=True)


@dataclass(frozen=True)
class Seeding(Sampler):
    """Seeds a global generator, so that it selects the same clients each time."""

    def select(self, round: int, count: int, sizes: Any, seed: int) -> list[int]:
        random.seed(seed + round)
        return random.sample(sorted(sizes), count)


def test_a_sampler_that_draws_is_refused() -> None:
    with pytest.raises(BadInput, match="sampler Seeding draws from random's global generator"):
        make_simulation(federation(), [network()], FedAvg(), rounds=1, local=LocalTraining(), sampler=Seeding())


# -- attributes ---------------------------------------------------------------------------------------
class Grows(FedProx):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        object.__setattr__(self, "mu", self.mu + 0.5)
        return super().aggregate(server, replies, task)


class KeepsLoss(FedAvg):
    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        value = super().loss(w, batch, client)
        vars(self)["last"] = value.detach()
        return value


@dataclass(frozen=True)
class FillsList(FedAvg):
    seen: list[Any] = field(default_factory=list)

    def finish(self, w: Weights, client: Client) -> Reply:
        self.seen.append(1)
        return super().finish(w, client)


@dataclass(frozen=True)
class DrawsFromItsOwn(FedAvg):
    source: Any = field(default_factory=lambda: np.random.default_rng(0))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        self.source.random()
        return super().aggregate(server, replies, task)


@pytest.mark.parametrize("executor", [Loop, Stack])
@pytest.mark.parametrize(
    ("method", "name"), [(Grows, "mu"), (KeepsLoss, "last"), (FillsList, "seen"), (DrawsFromItsOwn, "source")]
)
def test_a_method_that_changes_itself_is_refused(
    method: type[FedAvg], name: str, executor: Callable[[], Executor]
) -> None:
    with pytest.raises(BadInput, match=rf"changes {method.__name__}\.{name}, .*keep it in the server's or"):
        run(simulation(method()).using(executor()))


@dataclass(frozen=True)
class Slower(Aggregator):
    share: float = 1.0

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        object.__setattr__(self, "share", self.share / 2)
        return updates[0] * self.share


def test_an_aggregator_that_changes_itself_is_refused() -> None:
    made = make_simulation(federation(), [network()], FedAvg(), rounds=1, local=LocalTraining(), aggregator=Slower())
    with pytest.raises(BadInput, match=r"FedAvg\.aggregate changes Slower\.share"):
        run(made)


class Cached(FedAvg):
    @cached_property
    def seen(self) -> set[int]:
        return {1, 2}

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        assert self.seen
        return super().aggregate(server, replies, task)


def test_a_cached_property_is_no_change() -> None:
    run(simulation(Cached()))


class CountsCalls(FedAvg):
    calls: ClassVar[list[str]] = []

    def finish(self, w: Weights, client: Client) -> Reply:
        self.calls.append("finish")
        return super().finish(w, client)


def test_hooks_are_tried_once() -> None:
    run(made := simulation(CountsCalls()))
    assert len(CountsCalls.calls) == 3 * len(made.clients.holders) + 1


def test_a_component_with_the_id_of_one_that_is_gone_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        pass

    gone = ref(Part())  # nobody else holds it
    new = Part()
    monkeypatch.setattr(hook_check, "_checked", {("a hook", id(new)): [gone]})
    assert not hook_check._is_checked("a hook", [new])
    hook_check._note_checked("a hook", [new])
    assert hook_check._is_checked("a hook", [new])
    assert not hook_check._is_checked("another hook", [new])
