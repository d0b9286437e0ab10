"""Training for each objective against a plain PyTorch loop, on every executor; who follows it, and who says no."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain import Plain, average, values
from simulations import make_simulation, make_world, run
from torch import Tensor, nn

import fedhead as fh
from fedhead.core.training.objectives import Binary, Multiclass
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods.fedavg import FedAvg
from fedhead.models.registry import build
from fedhead.recipes import experiment as experiment_build
from fedhead.recipes.recipe import Recipe

SIZES = (10, 7)
BCE = nn.functional.binary_cross_entropy_with_logits
Loss = Callable[[Tensor, Tensor], Tensor]


def _federation(objective: str, test: bool = False) -> fh.Federation:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(n, 5)) for n in SIZES]
    make: dict[str, Callable[[Any], Any]] = {
        "binary": lambda x: np.where(x[:, 0] > 0, "ill", "well"),
        "multilabel": lambda x: x[:, :3] > 0.3,
        "regression": lambda x: x[:, :2] @ [[1.0, 2.0], [0.5, -1.0]],
    }
    pairs = [(each, make[objective](each)) for each in x]
    return fh.Federation.from_clients(pairs, test=0.3 if test else None, objective=objective)


CASES: dict[str, tuple[str, dict[str, Any], Loss]] = {
    "binary": ("binary", {}, lambda z, y: BCE(z[:, 0], y.double())),
    "binary, smooth": ("binary", {"label_smoothing": 0.2}, lambda z, y: BCE(z[:, 0], y.double() * 0.8 + 0.1)),
    "binary, weighted": (
        "binary",
        {"class_weights": [1.0, 3.0]},
        # Σ w_y ℓ / Σ w_y
        lambda z, y: BCE(z[:, 0], y.double(), weight=1.0 + 2 * y, reduction="sum") / (1.0 + 2 * y).sum(),
    ),
    "multilabel": ("multilabel", {"label_smoothing": 0.2}, lambda z, y: BCE(z, y.double() * 0.8 + 0.1)),
    "multilabel, weighted": (
        "multilabel",
        {"class_weights": [1.0, 3.0, 0.5]},
        lambda z, y: BCE(z, y.double(), pos_weight=torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)),
    ),
    "regression": ("regression", {}, lambda z, y: nn.functional.mse_loss(z, y.double())),
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Loop, Stack])
@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_a_plain_loop(case: str, executor: Callable[[], Executor]) -> None:
    objective, settings, loss = CASES[case]
    federation = _federation(objective)
    expected = build("mlp", (5,), federation.outputs, hidden=[4]).double()
    local = experiment_build.local(Recipe(lr=0.1, batch_size=4, **settings))
    simulation = make_simulation(
        federation, [copy.deepcopy(expected)], FedAvg(), rounds=2, local=local, dtype=torch.float64
    )
    simulation.using(executor())
    plain = Plain(federation, epochs=1, batch_size=4)
    for number in (1, 2):
        train_round(simulation, number)
        models = []
        for client in range(len(SIZES)):
            model = copy.deepcopy(expected)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for x, y in plain.batches(client, number):
                optimizer.zero_grad()
                loss(model(x).logits, y).backward()
                optimizer.step()
            models.append(model)
        expected = average(models, list(map(float, SIZES)))
    for name, value in values(expected).items():
        torch.testing.assert_close(simulation.server["model"][name], value, atol=1e-10, rtol=1e-10)


def test_binary_is_two_classes_of_which_the_first_has_the_logit_0() -> None:
    z, y, one = torch.tensor([[-200.0], [0.3], [50.0]]).double(), torch.tensor([1, 0, 0]), torch.ones(3)
    both = torch.cat([torch.zeros_like(z), z], -1)
    weights = torch.tensor([0.4, 1.7], dtype=torch.float64)
    for settings in ((0.0, None, None), (0.1, (0.4, 1.7), weights)):
        found = Binary(*settings).loss(z, y, one, one[:2])
        torch.testing.assert_close(found, Multiclass(*settings).loss(both, y, one, one[:2]))
    torch.testing.assert_close(
        Binary(0.1, (0.4, 1.7), weights).loss(z, y, one, one[:2]),
        nn.functional.cross_entropy(both, y, weight=weights, label_smoothing=0.1),
    )


FOLLOW = {"fedavg", "fedavgm", "fedprox", "clsprox", "feddyn", "scaffold", "local", "ditto", "fedrep", "moon"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(fh.METHODS))
def test_every_method_follows_or_says_that_it_can_not(name: str) -> None:
    for objective in ("binary", "multilabel", "regression"):
        federation = _federation(objective, test=True)
        if name in FOLLOW or (name == "fedclassavg" and objective == "binary"):
            result = fh.run(federation, "mlp(hidden=[4])", name, rounds=1, executor="loop")
            assert result.rows[-1]["client_test_loss"][0] > 0
            continue
        with pytest.raises(
            fh.BadInput, match=f"^{name} works on classes and can't follow objective={objective}: .* fedavg,"
        ):
            fh.run(federation, "mlp(hidden=[4])", name, rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(fh.STAGES))
def test_stages_that_need_classes_say_so(name: str) -> None:
    for objective in ("binary", "regression"):
        federation = _federation(objective, test=True)
        if name == "finetune":
            assert fh.run(federation, "mlp(hidden=[4])", rounds=1, stages=[name]).stage_rows[name]["client_test_loss"]
            continue
        with pytest.raises(fh.BadInput, match=f"{name} works on classes and can't follow .*: use one of finetune"):
            fh.run(federation, "mlp(hidden=[4])", rounds=1, stages=[name])
    with pytest.raises(fh.BadInput, match="or state objective=multiclass, with one logit per class"):
        fh.run(_federation("binary"), "mlp", rounds=1, stages=["ccvr"])


@dataclass(frozen=True)
class Own(fh.Method):
    """A method of the user's that calls the cross entropy itself."""

    def loss(self, w: Any, batch: Any, client: Any) -> Tensor:
        return fh.losses.cross_entropy(client.apply(w, batch.x).logits, batch.y, batch.weight)


@pytest.mark.parametrize("objective", ["binary", "multilabel", "regression"])
@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_a_loss_for_classes_is_refused(objective: str, executor: str) -> None:
    with pytest.raises(fh.BadInput, match=rf"Own\.loss does not use objective={objective}: .*client\.loss"):
        fh.run(_federation(objective), "mlp", Own(), rounds=1, executor=executor)


def test_settings_that_an_objective_has_not_are_refused() -> None:
    for objective, settings, message in [
        ("regression", {"label_smoothing": 0.1}, "label_smoothing: it is for classes, objective=regression has none"),
        ("regression", {"class_weights": "balanced"}, "class_weights: it is for classes"),
        ("multilabel", {"class_weights": "balanced_per_client"}, "needs classes, objective=multilabel has none"),
        ("regression", {"callbacks": ["early_stopping"], "validation": 0.3}, "watches accuracy, which objective=regr"),
        ("regression", {"model": nn.Linear(5, 3)}, "wrap it first"),
        ("binary", {"model": fh.split(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)))}, "build it with 1 outputs"),
    ]:
        with pytest.raises(fh.BadInput, match=message):
            fh.run(_federation(objective), **{"model": "mlp", "rounds": 1, **settings})


def test_balanced_labels_count_negatives_per_positive() -> None:
    federation = _federation("multilabel")
    local = experiment_build.local(Recipe(dataset="digits", class_weights="balanced"))
    simulation = make_simulation(federation, [build("mlp", (5,), 3)], FedAvg(), rounds=1, local=local)
    positive = federation.train.y.double().mean(0)
    torch.testing.assert_close(simulation.task.objective.weights, (1 - positive) / positive)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["binary", "multilabel", "regression"])
def test_over_flower_it_is_the_simulation(objective: str, tmp_path: Path) -> None:
    federation = _federation(objective, test=True)
    model = build("mlp", (5,), federation.outputs)
    settings: dict[str, Any] = {"rounds": 2, "local": fh.LocalTraining(batch_size=4)}
    world = make_world(federation, {"net": model}, FedAvg(), settings, tmp_path)
    found, expected = (
        run(world.transport(world.grid())),
        run(make_simulation(federation, [model], FedAvg(), **settings)),
    )
    for name, value in expected.server["model"].items():
        torch.testing.assert_close(found.server["model"][name], value, atol=1e-6, rtol=1e-6)
    last, wanted = found.rows[-1], expected.rows[-1]
    for entry in ("test_loss", "personal_loss"):
        assert last[entry] == pytest.approx(wanted[entry], rel=1e-5)
    assert (last["accuracy"], last["personal"]) == (wanted["accuracy"], wanted["personal"])
