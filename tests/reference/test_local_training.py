"""Optimizers, gradient clipping and schedules of local training against a plain PyTorch loop, on every executor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain import Plain, average, values
from simulations import make_simulation
from torch import nn

import fedhead as fh
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods.fedavg import FedAvg
from fedhead.models.registry import build
from fedhead.recipes import experiment as experiment_build
from fedhead.recipes.recipe import Recipe

Make = Callable[..., torch.optim.Optimizer]
CASES: list[tuple[dict[str, Any], Make]] = [
    ({"momentum": 0.9, "nesterov": True, "clip_norm": 0.3}, lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
    (
        {"optimizer": "adamw", "weight_decay": 0.1, "lr_schedule": "cosine", "warmup_rounds": 1},
        lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1),
    ),
    ({"lr_schedule": "step(1, 0.5)", "clip_norm": 0.01}, lambda p: torch.optim.SGD(p, 0.1)),
]
FACTORS = {"cosine": [0.5, 1.0, 0.5], "step(1, 0.5)": [1.0, 0.5, 0.25]}


@pytest.mark.parametrize("executor", [Loop, Stack])
@pytest.mark.parametrize(("settings", "make"), CASES)
def test_local_training_is_that_of_a_plain_loop(
    settings: dict[str, Any], make: Make, executor: Callable[[], Executor]
) -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = (10, 6)
    own = [(torch.randn(n, 5, generator=draw).numpy(), torch.arange(n).numpy() % 3) for n in sizes]
    federation = fh.Federation.from_clients(own, test=0.2)
    expected = build("mlp", (5,), 3, hidden=[4]).double()
    local = experiment_build.local(Recipe(lr=0.1, batch_size=4, **settings))
    simulation = make_simulation(
        federation, [copy.deepcopy(expected)], FedAvg(), rounds=3, local=local, dtype=torch.float64
    )
    simulation.using(executor())
    plain = Plain(federation, epochs=1, batch_size=4)
    for number in range(3):
        train_round(simulation, number + 1)
        models = []
        for client in range(len(sizes)):
            model = copy.deepcopy(expected)
            optimizer = make(model.parameters())
            optimizer.param_groups[0]["lr"] *= FACTORS.get(settings.get("lr_schedule", ""), [1.0] * 3)[number]
            for x, y in plain.batches(client, number + 1):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x).logits, y).backward()
                if "clip_norm" in settings:
                    nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
                optimizer.step()
            models.append(model)
        expected = average(models, [len(rows) for rows in federation.indices])
    for name, value in values(expected).items():
        torch.testing.assert_close(simulation.server["model"][name], value, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("executor", [Loop, Stack])
def test_clipping_bounds_the_corrected_step_of_scaffold(executor: Callable[[], Executor]) -> None:
    """However large the control variate of the server is, no model moves further than its steps allow."""
    draw = torch.Generator().manual_seed(0)
    own = [(torch.randn(10, 5, generator=draw).numpy(), torch.arange(10).numpy() % 3) for _ in range(3)]
    local = experiment_build.local(Recipe(dataset="digits", lr=0.1, batch_size=4, clip_norm=0.01))
    federation = fh.Federation.from_clients(own, test=0.2)
    settings: dict[str, Any] = {"rounds": 1, "local": local, "dtype": torch.float64}
    simulation = make_simulation(federation, [build("mlp", (5,), 3, hidden=[4])], fh.Scaffold(), **settings)
    before = simulation.server["model"]
    simulation.server = simulation.server.replace(control=simulation.server["control"] + 1.0)
    train_round(simulation.using(executor()), 1)
    moved = float((simulation.server["model"] - before).sq().sqrt())
    assert moved == pytest.approx(2 * 0.1 * 0.01, rel=1e-2)  # two steps, almost in the direction of the control variate


def test_momentum_words_without_effect_are_refused() -> None:
    federation = fh.Federation.from_clients([([[0.0, 1.0]] * 4, [0, 1, 0, 1])], test=0.5)
    for settings, message in [
        ({"nesterov": True}, "needs momentum"),
        ({"optimizer": "adamw", "momentum": 0.9}, "is for sgd"),
        ({"optimizer": "adam", "nesterov": True}, "is for sgd"),
        ({"method": "scaffold", "momentum": 0.9, "nesterov": True}, "leave nesterov off"),
    ]:
        with pytest.raises(fh.BadInput, match=message):
            fh.run(federation, "mlp", **{"rounds": 1, **settings})
