"""The promise across machines: every method and stage gives the numbers that simulation gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inprocess import World
from small import federation, network

import fedhead.methods
import fedhead.stages  # noqa: F401  the two register all methods and stages
from fedhead.engine.loop import Loop
from fedhead.engine.rounds import run_stage
from fedhead.engine.simulation import Simulation
from fedhead.flower.shelf import Shelf
from fedhead.method import METHODS, Stage
from fedhead.models.split import Split
from fedhead.optim import SGD
from fedhead.tree import Tree
from fedhead.types import Local

ROUNDS = 3
LOCAL = Local(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9), lr_decay=0.9)
SETTINGS = {"rounds": ROUNDS, "local": LOCAL, "participation": 0.6}


def model_for(name: str) -> Split:
    return network("batch", METHODS[name].head)


def same(a: Tree, b: Tree, tolerance: float = 1e-6) -> None:
    left, right = a.leaves(), b.leaves()
    assert left.keys() == right.keys()
    for name, t in left.items():
        torch.testing.assert_close(t, right[name], atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def compare(world: World, simulation: Simulation, stages: list[Stage]) -> None:
    """Run both to the end and hold server, sites' states, figures and stages against each other."""
    coordinator = world.coordinator(world.grid())
    outcomes = coordinator.run(world.method, [stage.after(world.method) for stage in stages])
    history = coordinator.progress.history
    for number in range(1, ROUNDS + 1):
        traffic = simulation.round(number, Loop())
        figures = simulation.evaluate(simulation.method, simulation.server, simulation.memory, number)
        row = history[number - 1]
        assert (row["bytes_up"], row["bytes_down"]) == (traffic.up, traffic.down)
        assert row["clients"] == pytest.approx(figures["clients"], abs=1e-6)
        for name in ("accuracy", "personal"):
            assert row[name] == (None if figures[name] is None else pytest.approx(figures[name], abs=1e-6))
    same(simulation.server, coordinator.progress.server)
    for k, state in simulation.memory.states.items():
        shelf = Shelf(world.folder / "state", world.experiment, f"site-{k}")
        stored = shelf.state(coordinator.progress.accepted[k])
        assert stored is not None
        same(state, stored)
    for stage in stages:
        expected = run_stage(simulation, stage, Loop())
        outcome = outcomes[stage.name]
        same(expected.server, outcome.server)
        for name in ("accuracy", "personal", "clients", "steps"):
            wanted, found = expected.metrics.get(name), outcome.metrics.get(name)
            assert found == (None if wanted is None else pytest.approx(wanted, abs=1e-6)), name


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method(name: str, tmp_path: Path) -> None:
    model, method = model_for(name), METHODS[name]()
    world = World(federation(), {"own": model}, method, SETTINGS, tmp_path)
    compare(world, Simulation(federation(), [model], method, **SETTINGS), [])
