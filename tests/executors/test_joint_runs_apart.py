"""Joined runs that must not reach each other: other settings that are hidden or change, errors, an interrupt."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from joined import CountingStack, check_alone
from same_trees import assert_same
from small import federation, network
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import Diverged
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job
from fedhead.executors.joint.runs import run_together
from fedhead.executors.stack.stack import Stack
from fedhead.methods.fedproto import FedProto
from fedhead.methods.fedprox import FedProx

ROUNDS = 2
LOCAL = LocalTraining(batch_size=4, optimizer=SGD(lr=0.05))


class Scaled(FedProx):
    """A setting that its printed form, that of a dataclass it inherits from, leaves out."""

    def __init__(self, scale: float):
        super().__init__(mu=0.1)
        object.__setattr__(self, "scale", scale)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        scale: float = vars(self)["scale"]
        return scale * super().loss(w, batch, client)


class Taught(FedProx):
    """A setting that is a module: the weights of its classifier are pulled towards this one's."""

    def __init__(self, seed: int):
        super().__init__(mu=0.1)
        teacher = torch.nn.Linear(network().classifier.in_features, 1, dtype=torch.float64)
        torch.nn.init.constant_(teacher.weight, seed)
        object.__setattr__(self, "teacher", teacher)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        target: Tensor = vars(self)["teacher"].weight.detach()
        return super().loss(w, batch, client) + (w["classifier.weight"] - target).square().sum()


class OfRounds(FedProx):
    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return client.task.rounds * super().loss(w, batch, client)


class OfSeed(FedProx):
    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        return (1 + client.task.seed) * super().loss(w, batch, client)


class Fails(FedProx):
    def finish(self, w: Weights, client: Client) -> Reply:
        if self.mu == 2:
            raise RuntimeError("mu is 2")
        return super().finish(w, client)


class AlwaysFails(FedProx):
    def finish(self, w: Weights, client: Client) -> Reply:
        raise ValueError("no reply")


def of(*methods: Method) -> list[Simulation]:
    return [
        Simulation(federation(), [network()], method, rounds=ROUNDS, local=LOCAL, seed=seed, dtype=torch.float64)
        for seed, method in enumerate(methods)
    ]


def train(runs: list[Simulation], mix_hyperparameters: bool = False, worker: Stack | None = None) -> None:
    def one(run: Simulation) -> Callable[[Executor], object]:
        return lambda member: [train_round(run.using(member), number) for number in range(1, ROUNDS + 1)]

    run_together(worker or Stack(), [one(run) for run in runs], mix_hyperparameters=mix_hyperparameters)


def with_tasks(runs: list[Simulation], **settings: Any) -> list[Simulation]:
    runs[-1].tasks = [replace(task, **settings) for task in runs[-1].tasks]
    return runs


@pytest.mark.parametrize(
    "make",
    [
        lambda: of(Scaled(1.0), Scaled(3.0)),
        lambda: of(Taught(1), Taught(2)),
        lambda: of(OfSeed(0.1), OfSeed(0.1)),
        lambda: with_tasks(of(OfRounds(0.1), OfRounds(0.1)), rounds=7),
        lambda: with_tasks(of(FedProto(), FedProto()), min_class_count=6),
    ],
    ids=["a hidden setting", "a module", "seed", "rounds", "min_class_count"],
)
def test_runs_with_other_settings_end_as_they_would_alone(make: Callable[[], list[Simulation]]) -> None:
    joined = make()
    train(joined)
    for found, alone in zip(joined, make(), strict=True):
        check_alone(found, alone, ROUNDS)


class Doubles(FedProx):
    """What makes a new number of a number would write into a tensor."""

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        mu = self.mu
        mu *= 2
        return Method.loss(self, w, batch, client) + mu / 2 * (w - client.received["model"]).sq()


def test_runs_whose_hooks_change_a_number_in_place_end_as_they_would_alone(caplog: pytest.LogCaptureFixture) -> None:
    joined, worker = of(Doubles(0.1), Doubles(0.7)), CountingStack()
    train(joined, True, worker)
    for found, alone in zip(joined, of(Doubles(0.1), Doubles(0.7)), strict=True):
        check_alone(found, alone, ROUNDS)
    assert "train one after another (BadInput: Doubles writes into self.mu in a client's hook" in caplog.text


@pytest.mark.parametrize("mix_hyperparameters", [False, True])
def test_a_run_whose_clients_fail_ends_alone(mix_hyperparameters: bool) -> None:
    runs = of(Fails(1.0), Fails(2.0))
    with pytest.raises(RuntimeError, match="mu is 2"):
        train(runs, mix_hyperparameters)
    check_alone(runs[0], of(Fails(1.0))[0], ROUNDS)


def test_a_run_that_fails_does_not_change_the_numbers_of_the_others() -> None:
    whole, runs = of(FedProx(0.1), FedProx(0.2)), of(FedProx(0.1), FedProx(0.2), AlwaysFails(0.3))
    worker = CountingStack()
    train(whole, mix_hyperparameters=True)
    with pytest.raises(ValueError, match="no reply"):
        train(runs, True, worker)
    assert set(worker.widths) == {8}  # the others stay in one stack
    for one, other in zip(whole, runs, strict=False):
        assert_same(other.server, one.server)


class SendsNan(FedProx):
    """Its replies are no numbers."""

    def finish(self, w: Weights, client: Client) -> Reply:
        return super().finish(w, client)._replace(send=Tree(model=w.params.map(lambda t: t * float("nan"))))


def test_numbers_that_are_not_finite_are_seen_beside_a_run_that_fails() -> None:
    runs = of(SendsNan(0.1), AlwaysFails(0.3), FedProx(0.2))
    failed: list[BaseException] = []

    def one(run: Simulation) -> Callable[[Executor], None]:
        def go(member: Executor) -> None:
            try:
                train_round(run.using(member), 1)
            except (Diverged, ValueError) as error:
                failed.append(error)

        return go

    run_together(Stack(), [one(run) for run in runs])
    assert sorted(str(error)[:8] for error in failed) == ["client 0", "no reply"]


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """Python's own handler of Ctrl-C, which it has not where a shell's background jobs inherit that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_interrupts")
def test_an_interrupt_ends_all_runs() -> None:
    done: list[int] = []

    def go(member: Executor) -> None:
        for round in range(1, 500):
            member.compute_together(lambda items: items, 0, round)
            if round == 2 and 2 not in done:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)
            done.append(round)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run_together(Stack(), [go, go])
    assert threading.active_count() == before
    assert max(done) < 400


class Spoils(Stack):
    """A user's executor that changes what a stack has computed."""

    def run(self, job: Job) -> list[Reply]:
        return [reply._replace(send=reply.send.map(lambda t: t * float("nan"))) for reply in super().run(job)]


def test_what_a_users_stack_returns_is_checked() -> None:
    with pytest.raises(Diverged, match="client 0, round 1"):
        train_round(of(FedProx())[0].using(Spoils()), 1)
