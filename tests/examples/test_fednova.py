"""FedNova as CONTRIBUTING teaches to write it, against a plain PyTorch loop over uneven clients."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from plain import Plain
from simulations import make_simulation
from small import federation, network

import fedhead as fh
from fedhead.engine.rounds.rounds import train_round
from fedhead.executors.loop import Loop


def load() -> Any:
    path = Path(__file__).parents[2] / "examples" / "fednova.py"
    spec = importlib.util.spec_from_file_location("fednova", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_a_plain_loop(momentum: float) -> None:
    """‖a_i‖₁ is counted step by step here: how far a constant gradient of 1 moves a weight at lr 1."""
    fed = dataclasses.replace(
        federation(), transform=fh.Transform.named("none", "half")
    )  # a plain loop augments nothing
    model = network("group").double()
    plain = Plain(fed, momentum=momentum)
    clients = [k for k, rows in enumerate(fed.indices) if len(rows)]
    total = sum(len(fed.indices[k]) for k in clients)
    current = copy.deepcopy(model)
    for number in (1, 2):
        updates, effective = [], 0.0
        for k in clients:
            trained, steps = plain.train(current, k, number)
            velocity = norm = 0.0
            for _ in range(steps):
                velocity = momentum * velocity + 1
                norm += velocity
            share = len(fed.indices[k]) / total
            effective += share * norm
            pairs = zip(trained.parameters(), current.parameters(), strict=True)
            updates.append([share * (y - x).detach() / norm for y, x in pairs])
        with torch.no_grad():
            for place, parameter in enumerate(current.parameters()):
                parameter += effective * sum(update[place] for update in updates)
    local = fh.LocalTraining(epochs=2, batch_size=4, optimizer=fh.SGD(lr=0.05, momentum=momentum))
    simulation = make_simulation(fed, [network("group")], load()(), rounds=2, local=local, dtype=torch.float64)
    for number in (1, 2):
        train_round(simulation.using(Loop()), number)
    for name, parameter in current.named_parameters():
        torch.testing.assert_close(simulation.server["model"][name], parameter.detach(), atol=1e-10, rtol=0)


@pytest.mark.slow
def test_it_passes_the_checks() -> None:
    fh.testing.check_method(load())


def test_its_body_is_under_twenty_lines() -> None:
    text = (Path(__file__).parents[2] / "examples" / "fednova.py").read_text()
    body = text[text.index("@dataclass") : text.index("if __name__")]
    assert len([line for line in body.splitlines() if line.strip()]) < 20
