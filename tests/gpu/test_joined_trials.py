"""On a GPU: trials that train side by side end as each does alone, and their models are tested in one stack."""

from __future__ import annotations

import numpy as np
import pytest

import fedhead as fh
from fedhead.engine.model_tests import JointModelTests, ModelTest
from fedhead.engine.predictions import Predictions
from fedhead.engine.rounds import FinishedRun
from fedhead.executors.graphs import Graphs
from fedhead.executors.job import Executor
from fedhead.executors.multi_run import run_together
from fedhead.executors.stack import Stack
from fedhead.experiment.data import Inputs
from fedhead.experiment.experiment import BuiltModels, Experiment
from fedhead.experiment.recipe import Recipe
from gpu import GPU

pytestmark = GPU
TRIALS = 6


def federation(shape: tuple[int, ...]) -> fh.Federation:
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (700, *shape)).astype(np.uint8), rng.randint(0, 10, 700)
    return fh.Federation.dirichlet(
        x[:400], y[:400], clients=5, alpha=0.3, test=(x[400:], y[400:]), classes=10, seed=0
    ).with_validation(0.2)


@pytest.mark.parametrize(
    ("model", "shape"), [("mlp", (1, 8, 8)), ("simplecnn", (3, 32, 32)), ("resnet20", (3, 32, 32))]
)
@pytest.mark.parametrize("slots", [None, 11])
def test_each_trial_ends_as_it_does_alone(
    model: str, shape: tuple[int, ...], slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[int] = []
    plainly = JointModelTests._stacked

    def counting(self: JointModelTests, tests: list[ModelTest]) -> list[Predictions]:
        tested.append(len(tests))
        return plainly(self, tests)

    monkeypatch.setattr(JointModelTests, "_stacked", counting)
    data, built = federation(shape), BuiltModels()
    trials = []
    for lr in np.geomspace(1e-3, 1e-2, TRIALS):
        recipe = Recipe(model=model, clients=5, rounds=2, local_epochs=1, batch_size=10, lr=float(lr), momentum=0.9)
        trials.append(Experiment.from_recipe(recipe, Inputs.of(data), built))

    def run(experiment: Experiment, executor: str | Executor) -> FinishedRun:
        return experiment.simulate(data, executor=executor, device="cuda")

    worker = Stack(graphs=Graphs(compile=False, slots=slots))
    joined = run_together(worker, [lambda member, one=one: run(one, member) for one in trials], mix_numbers=True)
    assert tested == [TRIALS] * 4  # two rounds, each on test and validation samples
    assert len({id(one.transport.pool) for one in joined}) == 1
    apart = 1e-2 if model == "resnet20" else 2e-3  # BatchNorm of ten random images amplifies rounding
    for experiment, mine in list(zip(trials, joined, strict=True))[::2]:
        alone = run(experiment, "stack")
        for path, value in alone.server.leaves().items():
            scale = value.double().norm().clamp_min(1.0)
            assert (value.double() - mine.server.leaves()[path].double()).norm() <= apart * scale, path
        for row, other in zip(mine.rows, alone.rows, strict=True):
            assert row["test_loss"] == pytest.approx(other["test_loss"], rel=1e-2)
            assert row["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
            assert row["accuracy"] == pytest.approx(other["accuracy"], abs=2)  # per cent of 300 samples
            assert row["validation"]["loss"] == pytest.approx(other["validation"]["loss"], rel=1e-2)
