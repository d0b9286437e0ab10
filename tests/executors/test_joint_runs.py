"""Seeds joined in one stack: each run ends as it would have ended alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from joined import CountingStack, check_alone
from small import CLASSES, federation, network

from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import Diverged
from fedhead.core.training.optimizers import SGD
from fedhead.data.federation.federation import Federation, Samples
from fedhead.data.transforms.augment import Transform
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job
from fedhead.executors.joint.runs import run_together
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.functional import call

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9))
ROUNDS = 3


class Gain(torch.nn.Module):
    """A layer whose setting does not show in its printed form."""

    def __init__(self, gain: float):
        super().__init__()
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gain * x


def simulation(
    seed: int,
    name: str,
    data: int = 0,
    *,
    labels: int = 0,
    normalize: str = "half",
    norm: str = "batch",
    local: LocalTraining = LOCAL,
    public: Samples | None = None,
    eps: float = 1e-5,
    gain: float = 1.0,
    dtype: torch.dtype = torch.float64,
    bf16: bool = False,
    client_test: float | None = None,
) -> Simulation:
    rng = np.random.RandomState(data)
    x = rng.randint(0, 256, (60, 1, 6, 6)).astype(np.uint8)
    transform = Transform.named("flip", normalize)
    y = (rng.randint(0, CLASSES, 60) + labels) % CLASSES
    fed = Federation.dirichlet(x, y, clients=4, alpha=0.5, seed=seed, transform=transform, classes=CLASSES)
    model = network(norm, METHODS[name].head)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.eps = eps
    model.extractor = torch.nn.Sequential(model.extractor, Gain(gain))
    return Simulation(
        replace(fed, public=public).with_client_test(client_test, seed),
        [model],
        METHODS[name](),
        rounds=ROUNDS,
        local=local,
        participation=0.75,
        seed=seed,
        dtype=dtype,
        bf16=bf16,
    )


def train(runs: list[Simulation], worker: Executor, rounds: list[int], begin: tuple[int, ...] = ()) -> None:
    """Train several simulations side by side, joined in one executor; each from round 1 or from where it `begin`s."""

    def one(run: Simulation, count: int, first: int) -> Callable[[Executor], None]:
        def go(member: Executor) -> None:
            for number in range(first, count + 1):
                train_round(run.using(member), number)

        return go

    firsts = begin or [1] * len(runs)
    run_together(worker, [one(*each) for each in zip(runs, rounds, firsts, strict=True)])


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "moon", "ditto"])
def test_each_seed_ends_as_it_would_alone(name: str) -> None:
    worker = CountingStack()
    joined = [simulation(seed, name) for seed in range(3)]
    train(joined, worker, [ROUNDS] * 3)
    assert worker.widths == [9] * ROUNDS  # three of four clients a seed, in one stack
    for seed, found in enumerate(joined):
        check_alone(found, simulation(seed, name), ROUNDS)


def test_a_model_that_was_applied_before_shares_a_stack_with_one_that_was_not() -> None:
    worker = CountingStack()
    runs = [simulation(seed, "fedavg") for seed in range(2)]
    call(runs[0].task.model, {}, torch.zeros(2, 1, 6, 6, dtype=torch.float64))
    train(runs, worker, [1, 1])
    assert worker.widths == [6]


def test_runs_on_other_data_or_of_another_method_train_apart_but_in_step() -> None:
    worker = CountingStack()
    runs = [simulation(0, "fedavg"), simulation(1, "fedavg", data=1), simulation(0, "fedprox")]
    train(runs, worker, [1, 1, 1])
    assert sorted(worker.widths) == [3, 3, 3]


def test_seeds_that_begin_with_other_weights_share_a_stack() -> None:
    worker, runs = CountingStack(), [simulation(0, "fedavg"), simulation(1, "fedavg")]
    for run in runs:
        with torch.no_grad():
            for parameter in run.task.model.parameters():
                parameter.add_(run.task.seed)
    train(runs, worker, [2, 2])  # in which the models are used before and after they are compared
    assert worker.widths == [6, 6]


def test_one_run_proceeds_at_a_time_and_what_is_alike_is_made_once() -> None:
    data, model = federation(), network()
    inside: list[int] = []

    def go(member: Executor) -> Simulation:
        inside.append(1)
        time.sleep(0.01)
        assert len(inside) == 1
        local = replace(LOCAL, optimizer=SGD(0.1))
        run = Simulation(data, [model], METHODS["fedavg"](), rounds=1, local=local, executor=member)
        inside.pop()
        train_round(run, 1, evaluated=True)
        return run

    one, other = run_together(Stack(), [go, go])
    assert one.pool is other.pool
    assert one.task.model is other.task.model
    assert one.task.model is not model


def test_a_run_with_numbers_that_are_not_finite_ends_alone() -> None:
    runs = [simulation(seed, "fedavg") for seed in range(2)]
    runs[0].server = runs[0].server.map(lambda t: t * float("nan"))
    with pytest.raises(Diverged, match="round 1"):
        train(runs, Stack(), [ROUNDS] * 2)
    check_alone(runs[1], simulation(1, "fedavg"), ROUNDS)


def test_runs_compute_together_what_they_ask_for_at_the_same_point() -> None:
    served: list[list[int]] = []

    def double(items: list[int]) -> list[int]:
        served.append(items)
        return [2 * item for item in items]

    def go(number: int) -> Callable[[Executor], list[int]]:
        rounds = range(1, 4) if number else (1, 3)  # one of them leaves a round out
        return lambda member: [member.compute_together(double, 10 * round + number, round) for round in rounds]

    assert run_together(Stack(), [go(0), go(1)]) == [[20, 60], [22, 42, 62]]
    assert served == [[10, 11], [21], [30, 31]]
    assert Stack().compute_together(double, 5, 1) == 10  # alone


PUBLIC = Samples(torch.zeros(2, 1, 6, 6, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize(
    "other",
    [
        {"labels": 1},
        {"normalize": "unit"},
        {"norm": "group"},
        {"eps": 0.1},
        {"gain": 2.0},
        {"dtype": torch.float32},
        {"bf16": True},
        {"public": PUBLIC},
        {"local": replace(LOCAL, lr_decay=0.5)},
        {"local": replace(LOCAL, optimizer=SGD(lr=0.05))},
    ],
    ids=[
        "labels",
        "transform",
        "layers",
        "settings of layers",
        "attributes",
        "precision",
        "bf16",
        "public",
        "decay",
        "optimizer",
    ],
)
def test_whatever_differs_keeps_runs_out_of_one_stack(other: dict[str, Any]) -> None:
    worker = CountingStack()
    train([simulation(0, "fedavg"), simulation(1, "fedavg", **other)], worker, [2, 2])
    assert worker.widths == [3] * 4


def test_seeds_whose_classes_are_balanced_by_other_counts_train_apart() -> None:
    worker, local = CountingStack(), replace(LOCAL, class_weights="balanced")
    train([simulation(seed, "fedavg", local=local, client_test=0.3) for seed in (0, 1)], worker, [1, 1])
    assert worker.widths == [3, 3]


def test_runs_that_were_resumed_at_different_rounds_come_level_and_go_on_in_one_stack() -> None:
    ahead, behind = simulation(0, "moon"), simulation(1, "moon")
    for number in (1, 2):
        train_round(ahead.using(Stack()), number)
    worker = CountingStack()
    train([ahead, behind], worker, [ROUNDS + 1] * 2, begin=(3, 1))
    assert worker.widths == [3, 3, 6, 6]
    for seed, found in enumerate((ahead, behind)):
        check_alone(found, simulation(seed, "moon"), ROUNDS + 1)


def test_a_run_that_ends_early_or_fails_holds_up_nobody() -> None:
    runs = [simulation(seed, "fedavg") for seed in range(3)]
    train(runs, Stack(), [1, 3, 2])

    class Broken(Stack):
        def run(self, job: Job) -> list[Reply]:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        train([simulation(0, "fedavg"), simulation(1, "fedavg")], Broken(), [2, 2])


def test_runs_are_stacked_in_the_order_of_joining_whoever_comes_first() -> None:
    """What is compiled is found again by the first run of a stack, so the first must always be the same."""
    runs = [simulation(seed, "fedavg") for seed in range(3)]
    firsts: list[int] = []

    class First(Stack):
        def run(self, job: Job) -> list[Reply]:
            firsts.append(next(i for i, run in enumerate(runs) if run.tasks[0].model is job.program.task.model))
            return super().run(job)

    def one(number: int) -> Callable[[Executor], None]:
        def go(member: Executor) -> None:
            for round in range(1, ROUNDS + 1):
                time.sleep(0.03 * ((number + round) % 3))  # in each round another one comes first
                train_round(runs[number].using(member), round)

        return go

    run_together(First(), [one(number) for number in range(3)])
    assert firsts == [0] * ROUNDS
