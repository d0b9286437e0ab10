"""Runs that differ in hyperparameters alone share a stack, and each ends as it would alone."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from joined import CountingStack
from same_trees import assert_same
from small import CLASSES, network

import fedhead as fh
from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import SGD, Adam, AdamW
from fedhead.core.training.schedules import Cosine
from fedhead.core.tree.tree import Weights
from fedhead.data.federation.federation import Federation, Samples
from fedhead.data.transforms.augment import Transform
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.joint.runs import run_together
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9))
ROUNDS = 2
PUBLIC = Samples(torch.zeros(6, 1, 6, 6, dtype=torch.uint8), torch.zeros(6, dtype=torch.int64))


def simulation(method: Method, local: LocalTraining = LOCAL, dtype: torch.dtype = torch.float64) -> Simulation:
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (40, 1, 6, 6)).astype(np.uint8), rng.randint(0, CLASSES, 40)
    transform = Transform.named("none", "half")
    fed = Federation.dirichlet(x, y, clients=3, alpha=0.5, seed=0, transform=transform, classes=CLASSES)
    fed = replace(fed, public=PUBLIC)
    return Simulation(fed, [network("group", method.head)], method, rounds=ROUNDS, local=local, dtype=dtype)


def compare(made: Callable[[], list[Simulation]], tolerance: float = 1e-10) -> CountingStack:
    """Train runs side by side and alone, and require the same weights and losses of each."""
    worker, joined, alone = CountingStack(), made(), made()

    def one(run: Simulation) -> Callable[[Executor], list[Any]]:
        return lambda member: [train_round(run.using(member), number) for number in range(1, ROUNDS + 1)]

    found = run_together(worker, [one(run) for run in joined], mix_hyperparameters=True)
    for mine, run, single in zip(found, joined, alone, strict=True):
        rows = [train_round(single.using(Stack()), number) for number in range(1, ROUNDS + 1)]
        assert_same(run.server, single.server, tolerance, tolerance)
        for k, state in single.states.kept.items():
            assert_same(run.states.kept[k], state, tolerance, tolerance, equal_nan=True)
        assert [row["train_loss"] for row in mine] == pytest.approx([row["train_loss"] for row in rows], rel=tolerance)
    return worker


# hyperparameters that the default of another option makes useless, and refused
WITHOUT_EFFECT = {"ktpfl": {"transfer"}}


def hyperparameters_of(name: str) -> dict[str, float]:
    """The declared hyperparameters of a method."""
    declared = {f.name: f.default for f in dataclasses.fields(METHODS[name]) if type(f.default) is float}
    return {key: value for key, value in declared.items() if key not in WITHOUT_EFFECT.get(name, ())}


def varied(name: str, factor: float) -> Method:
    """A method whose declared hyperparameters are all multiplied by a factor."""
    return replace(METHODS[name](), **{key: value * factor for key, value in hyperparameters_of(name).items()})


QUICK = ("fedprox", "moon")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in sorted(METHODS)]
)
def test_learning_rate_decay_momentum_and_a_methods_own_hyperparameters_may_differ(name: str) -> None:
    locals_ = [replace(LOCAL, optimizer=SGD(0.05 * f, 0.9 * f, 1e-3 * f)) for f in (1.0, 0.7, 0.5)]
    worker = compare(lambda: [simulation(varied(name, f), o) for f, o in zip((1, 0.7, 0.5), locals_, strict=True)])
    assert worker.widths == [9] * ROUNDS
    own = {f"algorithm.{key}" for key, value in hyperparameters_of(name).items() if value}
    assert worker.names >= {"lr", "local.optimizer.lr", "local.optimizer.momentum", "local.optimizer.weight_decay"}
    assert own <= worker.names


@pytest.mark.parametrize(
    "locals_",
    [
        [replace(LOCAL, optimizer=Adam(1e-3, weight_decay=d)) for d in (0.0, 1e-2)],
        [replace(LOCAL, optimizer=AdamW(lr, weight_decay=lr)) for lr in (1e-3, 3e-3)],
        [replace(LOCAL, clip_norm=limit) for limit in (0.1, 0.5)],
        [replace(LOCAL, schedule=Cosine()), replace(LOCAL, lr_decay=0.5), replace(LOCAL, warmup_rounds=1)],
        [replace(LOCAL, optimizer=SGD(lr, 0.9, 0.0, nesterov=True), persistent=True) for lr in (0.01, 0.05)],
    ],
    ids=["adam", "adamw", "clipping", "schedules", "nesterov"],
)
def test_settings_of_local_training_that_may_differ(locals_: list[LocalTraining]) -> None:
    worker = compare(lambda: [simulation(METHODS["fedavg"](), local) for local in locals_])
    assert worker.widths == [3 * len(locals_)] * ROUNDS


def test_float32_is_as_close_as_rounding_allows() -> None:
    locals_ = [replace(LOCAL, optimizer=SGD(lr, 0.9, 1e-4)) for lr in (0.01, 0.05)]
    compare(lambda: [simulation(METHODS["fedprox"](), local, torch.float32) for local in locals_], 1e-5)


@pytest.mark.parametrize(
    "other",
    [
        replace(LOCAL, optimizer=SGD(0.05)),
        replace(LOCAL, optimizer=Adam(0.05)),
        replace(LOCAL, batch_size=5),
        replace(LOCAL, epochs=2),
        replace(LOCAL, clip_norm=1.0),
        replace(LOCAL, label_smoothing=0.1),
    ],
    ids=["no momentum", "optimizer", "batch size", "epochs", "no clipping", "smoothing"],
)
def test_what_decides_the_structure_of_the_work_keeps_runs_apart(other: LocalTraining) -> None:
    worker = compare(lambda: [simulation(METHODS["fedavg"](), local) for local in (LOCAL, other)])
    assert worker.widths == [3] * 2 * ROUNDS


@dataclass(frozen=True)
class Branching(Method):
    strength: float = 0.0

    def loss(self, w: Weights, batch: Batch, client: Client) -> torch.Tensor:
        plain = super().loss(w, batch, client)
        return plain + self.strength * w.sq() if self.strength > 0.5 else plain


@dataclass(frozen=True)
class OwnRate(Method):
    rate: float = 0.01

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(self.loss, optimizer=SGD(self.rate)),)


@dataclass(frozen=True)
class Closure(Method):
    strength: float = 0.0

    def phases(self, task: Task) -> tuple[Phase, ...]:
        return (Phase(lambda w, batch, client: self.loss(w, batch, client) * self.strength),)


@dataclass(frozen=True)
class Derived(Method):
    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", 2 * self.strength)

    def loss(self, w: Weights, batch: Batch, client: Client) -> torch.Tensor:
        return super().loss(w, batch, client) * self.doubled  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [OwnRate, Closure, Derived])
def test_hyperparameters_that_a_method_uses_before_its_hooks_keep_runs_apart(kind: Any) -> None:
    worker = compare(lambda: [simulation(kind(value)) for value in (0.01, 0.02)])
    assert worker.widths == [3] * 2 * ROUNDS


def test_a_hyperparameter_that_a_hook_branches_on_lets_the_runs_train_one_after_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "fedhead"):
        worker = compare(lambda: [simulation(Branching(value)) for value in (0.1, 0.9)])
    assert worker.widths == [3] * 2 * ROUNDS
    assert "one after another" in caplog.text


def test_runs_alike_in_their_hyperparameters_are_joined_bit_for_bit() -> None:
    worker = compare(lambda: [simulation(METHODS["fedprox"]()) for _ in range(2)], tolerance=0)
    assert worker.widths == [6] * ROUNDS
    assert not worker.names


@pytest.mark.parametrize("name", ["ditto", "fedprox", "moon"])
def test_a_stage_that_trains_by_its_method_s_loss_reads_the_method_s_hyperparameters(name: str) -> None:
    rng = np.random.RandomState(0)
    x, y = rng.rand(80, 5).astype("float32"), rng.randint(0, CLASSES, 80)
    fed = Federation.dirichlet(x, y, clients=3, alpha=1, seed=0, classes=CLASSES, client_test=0.3)

    def run(lr: float, executor: Executor) -> fh.Result:
        stages = [fh.FineTune()]
        return fh.run(fed, "mlp", METHODS[name](), rounds=1, lr=lr, stages=stages, executor=executor)

    rates = (0.05, 0.02)
    found = run_together(Stack(), [partial(run, lr) for lr in rates], mix_hyperparameters=True)
    for lr, mine in zip(rates, found, strict=True):
        tuned, alone = (one.stages["finetune"].states for one in (mine, run(lr, Stack())))
        for k in range(3):
            assert_same(tuned[k], alone[k], atol=1e-5, rtol=1e-4)
