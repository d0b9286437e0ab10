"""The shared stack: runs that train their clients in common stacks get the numbers of single runs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from same_trees import assert_same
from simulations import make_simulation
from small import federation, network
from tiers import quick

import fedhead as fh
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job
from fedhead.executors.stack import shared_stack
from fedhead.executors.stack.shared_stack import SharedStack
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.methods.fedavg import FedAvg

ROUNDS = 3


class Recording(Stack):
    """A stack that notes how many clients each of its jobs has."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[list[int]] = []

    def train_all(self, jobs: Sequence[Job]) -> list[Sequence[Reply]]:
        self.jobs.append([len(job.clients) for job in jobs])
        return super().train_all(jobs)


def simulation(seed: int, method: str = "moon", lr: float = 0.05) -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr))
    model = network("batch")
    return make_simulation(
        federation(), [model], METHODS[method](), rounds=ROUNDS, local=local, dtype=torch.float64, seed=seed
    )


def train(made: Simulation, executor: Executor, rounds: int = ROUNDS) -> Tree:
    made.using(executor)
    for number in range(1, rounds + 1):
        train_round(made, number)
    return made.server


def train_shared(simulations: Sequence[Simulation], stack: Stack) -> dict[int, BaseException]:
    return SharedStack(stack).run({place: partial(train, made) for place, made in enumerate(simulations)})


@pytest.mark.parametrize("method", quick(["fedavg", "moon", "scaffold", "fedprox"], "moon"))
def test_runs_that_differ_in_their_seeds_train_in_one_stack_as_alone(method: str) -> None:
    apart = [train(simulation(seed, method), Stack()) for seed in range(3)]
    together = [simulation(seed, method) for seed in range(3)]
    stack = Recording()
    assert train_shared(together, stack) == {}
    assert stack.jobs == [[12]] * ROUNDS
    for alone, made in zip(apart, together, strict=True):
        assert_same(made.server, alone, 1e-10, 1e-10)


def test_runs_with_other_settings_have_a_stack_of_their_own() -> None:
    together = [simulation(0), simulation(1), simulation(0, "fedavg"), simulation(0, lr=0.01)]
    stack = Recording()
    assert train_shared(together, stack) == {}
    assert stack.jobs == [[8, 4, 4]] * ROUNDS


def test_a_run_that_fails_ends_alone() -> None:
    alone = train(simulation(0), Stack())
    good, bad = simulation(0), simulation(1)

    def fail(executor: Executor) -> None:
        train(bad, executor, rounds=1)
        raise BadInput("the disk is full")

    errors = SharedStack(Stack()).run({"good": partial(train, good), "bad": fail})
    assert {name: str(error) for name, error in errors.items()} == {"bad": "the disk is full"}
    assert_same(good.server, alone, 1e-10, 1e-10)


def test_a_job_that_fails_in_a_common_stack_ends_its_own_run_alone() -> None:
    class Refusing(Stack):
        def train_all(self, jobs: Sequence[Job]) -> list[Sequence[Reply]]:
            if any(job.lr == 0.01 for job in jobs):
                raise RuntimeError("rate 0.01")
            return super().train_all(jobs)

    good, bad = simulation(0), simulation(0, lr=0.01)
    errors = train_shared([good, bad], Refusing())
    assert [str(error) for error in errors.values()] == ["rate 0.01"]
    assert_same(good.server, train(simulation(0), Stack()), 1e-10, 1e-10)


def test_runs_that_can_t_be_compared_train_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(a: object, b: object) -> bool:
        raise RuntimeError("no memory")

    monkeypatch.setattr(shared_stack, "_are_compatible", fail)
    stack = Recording()
    assert train_shared([simulation(0), simulation(1)], stack) == {}
    assert stack.jobs == [[4]] * (2 * ROUNDS)


def test_a_run_that_is_behind_catches_up_first() -> None:
    ahead, behind = simulation(0), simulation(1)
    train(ahead, Stack(), rounds=1)
    stack = Recording()

    def go_on(executor: Executor) -> None:
        ahead.using(executor)
        for number in range(2, ROUNDS + 1):
            train_round(ahead, number)

    assert SharedStack(stack).run({"ahead": go_on, "behind": partial(train, behind)}) == {}
    assert stack.jobs == [[4], [8], [8]]
    assert_same(ahead.server, train(simulation(0), Stack()), 1e-10, 1e-10)


def test_a_method_of_the_users_own_trains_alone() -> None:
    class Own(FedAvg):
        """FedAvg by another name."""

    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    made = [make_simulation(federation(), [network("batch")], Own(), rounds=ROUNDS, local=local) for _ in range(2)]
    stack = Recording()
    assert train_shared(made, stack) == {}
    assert stack.jobs == [[4]] * (2 * ROUNDS)


def test_an_upload_of_the_users_own_trains_alone() -> None:
    class BySeed(fh.Upload):
        """Adds a number that follows from the run's seed."""

        def encode(self, send: Tree, client: fh.Client) -> Tree:
            model = send["model"]
            return send.replace(model=model.replace({name: t + client.task.seed for name, t in model.params.items()}))

    def made(seed: int) -> Simulation:
        local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
        settings = {"rounds": ROUNDS, "local": local, "seed": seed, "uploads": [BySeed()], "dtype": torch.float64}
        return make_simulation(federation(), [network("batch")], FedAvg(), **settings)

    together = [made(0), made(1)]
    assert train_shared(together, Stack()) == {}
    assert_same(together[1].server, train(made(1), Stack()), 1e-10, 1e-10)


def test_an_interrupt_ends_every_run_and_reaches_the_caller() -> None:
    stack, threads = SharedStack(Stack()), set(threading.enumerate())
    joins = iter([KeyboardInterrupt])
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        for error in joins:
            raise error
        join(thread, timeout)

    together = {seed: partial(train, simulation(seed), rounds=ROUNDS) for seed in range(2)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stack.run(together)
    assert set(threading.enumerate()) <= threads
