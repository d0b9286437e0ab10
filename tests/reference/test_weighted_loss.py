"""Label smoothing and class weights against `torch.nn.functional.cross_entropy` in a plain loop, on every executor."""

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
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor, nn

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods.fedavg import FedAvg
from fedhead.models.registry import build
from fedhead.recipes import experiment as experiment_build
from fedhead.recipes.recipe import Recipe
from fedhead.testing.small import small_federation, small_model

SIZES = (10, 6)
LABELS = [np.array([0, 0, 0, 0, 0, 1, 1, 1, 2, 2]), np.array([1, 1, 0, 1, 1, 1])]  # the second client lacks a class


def _federation() -> fh.Federation:
    draw = torch.Generator().manual_seed(0)
    own = [(torch.randn(n, 5, generator=draw).numpy(), y) for n, y in zip(SIZES, LABELS, strict=True)]
    return fh.Federation.from_clients(own)


def _sklearn(y: np.ndarray[Any, Any]) -> Tensor:
    there = np.unique(y)
    found = torch.zeros(3, dtype=torch.float64)
    found[torch.from_numpy(there)] = torch.from_numpy(compute_class_weight("balanced", classes=there, y=y))
    return found


CASES: list[tuple[dict[str, Any], list[Tensor | None]]] = [
    ({"label_smoothing": 0.1}, [None, None]),
    ({"class_weights": [1.0, 2.0, 0.5]}, [torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)] * 2),
    ({"class_weights": "balanced", "label_smoothing": 0.2}, [_sklearn(np.concatenate(LABELS))] * 2),
    ({"class_weights": "balanced_per_client", "label_smoothing": 0.2}, [_sklearn(y) for y in LABELS]),
]


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Loop, Stack])
@pytest.mark.parametrize(("settings", "weights"), CASES)
def test_the_loss_is_that_of_torch(
    settings: dict[str, Any], weights: list[Tensor | None], executor: Callable[[], Executor]
) -> None:
    federation, expected = _federation(), build("mlp", (5,), 3, hidden=[4]).double()
    local = experiment_build.local(Recipe(lr=0.1, batch_size=4, **settings))
    simulation = make_simulation(
        federation, [copy.deepcopy(expected)], FedAvg(), rounds=2, local=local, dtype=torch.float64
    )
    simulation.using(executor())
    plain = Plain(federation, epochs=1, batch_size=4)
    smoothing = settings.get("label_smoothing", 0.0)
    for number in (1, 2):
        train_round(simulation, number)
        models = []
        for client, own in enumerate(weights):
            model = copy.deepcopy(expected)
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for x, y in plain.batches(client, number):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x).logits, y, weight=own, label_smoothing=smoothing).backward()
                optimizer.step()
            models.append(model)
        expected = average(models, list(map(float, SIZES)))
    for name, value in values(expected).items():
        torch.testing.assert_close(simulation.server["model"][name], value, atol=1e-10, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "moon", "fedclassavg", "fedproto", "ktpfl", "fednh"])
def test_methods_with_more_terms_follow_it(method: str) -> None:
    federation = fh.Federation.from_arrays(
        np.random.default_rng(0).normal(size=(24, 5)), np.arange(24) % 3, clients=2, public=(np.ones((4, 5)), [0] * 4)
    )
    first, second = (
        fh.run(federation, "mlp(hidden=[4])", method, rounds=1, class_weights=given).train_loss
        for given in (None, [4.0, 1.0, 1.0])
    )
    assert first != second


def test_a_loss_of_its_own_refuses_what_it_would_ignore() -> None:
    federation = _federation()
    for method in (fh.FedETF(), fh.FedRoD()):
        with pytest.raises(fh.BadInput, match=f"label_smoothing: {method.name} trains by its own loss"):
            fh.run(federation, "mlp", method, rounds=1, label_smoothing=0.1)
    fh.run(federation, "mlp(hidden=[4])", fh.FedETF(balanced_loss=False), rounds=1, label_smoothing=0.1)
    for executor in ("loop", "stack"):
        with pytest.raises(fh.BadInput, match=r"Own\.loss does not use class_weights: .*client\.loss"):
            fh.run(federation, "mlp", Own(), rounds=1, class_weights="balanced", executor=executor)


@dataclass(frozen=True)
class Own(fh.Method):
    """A method of the user's that calls the cross entropy itself."""

    def loss(self, w: Any, batch: Any, client: Any) -> Tensor:
        return fh.losses.cross_entropy(client.apply(w, batch.x).logits, batch.y, batch.weight)


def test_wrong_weights_are_refused() -> None:
    federation = _federation()
    for given, message in [
        ([1.0, 2.0], "2 numbers were given, there are 3 classes"),
        ([0.0, 0.0, 0.0], "all are 0"),
        ([1.0, -1.0, 1.0], "class_weights: -1.0 is out of range"),
        ("equal", "'equal' is not one of balanced, balanced_per_client"),
    ]:
        with pytest.raises(fh.BadInput, match=message):
            fh.run(federation, "mlp", rounds=1, class_weights=given)
    with pytest.raises(fh.BadInput, match=r"label_smoothing: 1\.0 is out of range"):
        fh.run(federation, "mlp", rounds=1, label_smoothing=1.0)


def test_sites_balance_by_their_own_counts_only(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rounds": 2, "local": LocalTraining(batch_size=4, class_weights="balanced_per_client")}
    world = make_world(small_federation(), {"net": small_model()}, FedAvg(), settings, tmp_path)
    simulation = make_simulation(small_federation(), [small_model()], FedAvg(), **settings)
    found, expected = run(world.transport(world.grid())), run(simulation)
    for name, value in expected.server["model"].items():
        torch.testing.assert_close(found.server["model"][name], value, atol=1e-6, rtol=1e-6)
    settings["local"] = LocalTraining(batch_size=4, class_weights="balanced")
    with pytest.raises(fh.BadInput, match="balanced needs the class counts of all clients, which real sites"):
        make_world(small_federation(), {"net": small_model()}, FedAvg(), settings, tmp_path / "b").transport(
            world.grid()
        )
