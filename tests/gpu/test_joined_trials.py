"""On a GPU: trials that train side by side end as each does alone, and their models are tested in one stack."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from gpu_stub import HeldCompiler

import fedhead as fh
from fedhead.core.system.errors import Diverged
from fedhead.engine.clients.global_model_tests import JointModelTests, ModelTest
from fedhead.engine.rounds.rounds import FinishedRun, Snapshot
from fedhead.engine.rounds.rounds import run as run_rounds
from fedhead.executors.client.base import Executor
from fedhead.executors.joint.runs import run_together
from fedhead.executors.stack import graph_runner
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.stack import Stack
from fedhead.metrics.predictions import Predictions
from fedhead.recipes.experiment import BuiltModels, Experiment
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_data import Inputs
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
    # BatchNorm of ten random images amplifies rounding: with 1e-2 a loop and a stack are 5 % apart after two rounds
    slowest = 1e-4 if model == "resnet20" else 1e-3
    for lr in np.geomspace(slowest, 10 * slowest, TRIALS):
        recipe = Recipe(model=model, clients=5, rounds=2, local_epochs=1, batch_size=10, lr=float(lr), momentum=0.9)
        trials.append(Experiment.from_recipe(recipe, Inputs.of(data), built))

    def run(experiment: Experiment, executor: str | Executor) -> FinishedRun:
        return experiment.simulate(data, executor=executor, device="cuda")

    worker = Stack(graphs=Graphs(compile=False, slots=slots))
    joined = run_together(
        worker, [lambda member, one=one: run(one, member) for one in trials], mix_hyperparameters=True
    )
    assert tested == [TRIALS] * 4  # two rounds, each on test and validation samples
    assert len({id(one.transport.pool) for one in joined}) == 1
    for experiment, mine in list(zip(trials, joined, strict=True))[::2]:
        alone = run(experiment, "stack")
        for path, value in alone.server.leaves().items():
            scale = value.double().norm().clamp_min(1.0)
            assert (value.double() - mine.server.leaves()[path].double()).norm() <= 2e-3 * scale, path
        for row, other in zip(mine.rows, alone.rows, strict=True):
            assert row["test_loss"] == pytest.approx(other["test_loss"], rel=1e-2)
            assert row["train_loss"] == pytest.approx(other["train_loss"], rel=1e-2)
            assert row["accuracy"] == pytest.approx(other["accuracy"], abs=2)  # per cent of 300 samples
            assert row["validation"]["loss"] == pytest.approx(other["validation"]["loss"], rel=1e-2)


@pytest.mark.filterwarnings("ignore")  # the compiler's own: as errors they would stop it
@pytest.mark.parametrize("method", ["fedprox", "moon", "scaffold"])
@pytest.mark.parametrize("diverging", [False, True])
def test_trials_change_over_to_compiled_steps(method: str, diverging: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bf16; one of the trials may diverge, before or after that."""
    monkeypatch.setattr(graph_runner, "is_known", lambda graph, forms: False)
    data, built = federation((3, 32, 32)), BuiltModels()
    rates = [1e-3, 1e4 if diverging else 5e-3, 2e-3]
    base = Recipe(method=method, model="simplecnn", clients=5, rounds=4, local_epochs=2, batch_size=10, momentum=0.9)
    trials = [Experiment.from_recipe(replace(base, lr=lr), Inputs.of(data), built) for lr in rates]
    compiler = HeldCompiler()
    worker = Stack(graphs=Graphs(compiler=compiler))
    compiled: list[bool] = []

    def run(experiment: Experiment, executor: Executor) -> FinishedRun | None:
        def after(snapshot: Snapshot) -> None:
            compiled.append(worker.compiled)
            if snapshot.round == 2:
                for one in compiler.made:
                    one.end()

        try:
            return run_rounds(experiment.simulation(data, torch.device("cuda"), True).using(executor), on_round=after)
        except Diverged:
            return None

    joined = run_together(worker, [partial(run, one) for one in trials], mix_hyperparameters=True)
    assert worker.graphs.compile, "the step could not be compiled"
    assert compiled[0] is False
    assert compiled[-1] is True
    assert [found is None for found in joined] == [False, diverging, False]
    for experiment, mine in zip(trials, joined, strict=True):
        if mine is not None:
            alone = run(experiment, Stack(graphs=Graphs(compile=False)))
            assert alone is not None
            for path, value in alone.server.leaves().items():
                scale = value.double().norm().clamp_min(1.0)
                assert (value.double() - mine.server.leaves()[path].double()).norm() <= 1e-2 * scale, path
