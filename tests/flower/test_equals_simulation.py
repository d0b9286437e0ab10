"""The promise across machines: every method and stage gives the numbers that simulation gives."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from inprocess import World
from small import federation, network

from fedhead.algorithm.base import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.errors import FedheadError
from fedhead.core.optimizers import SGD
from fedhead.core.tree import Tree
from fedhead.engine.rounds import run_stage
from fedhead.engine.simulation import Simulation
from fedhead.executors.loop import Loop
from fedhead.flower.site_store import SiteStore
from fedhead.methods import METHODS
from fedhead.models.split_model import SplitModel
from fedhead.stages import STAGES

ROUNDS = 3
LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9), lr_decay=0.9)
SETTINGS = {"rounds": ROUNDS, "local": LOCAL, "participation": 0.6}


def model_for(name: str) -> SplitModel:
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
    for stage in stages:
        stage.check([task.model for task in simulation.tasks], simulation.federation)
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
        store = SiteStore(world.folder / "state", world.experiment, f"site-{k}")
        stored = store.state(coordinator.progress.accepted[k])
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


SMALL = {"samples": 20, "epochs": 2, "iterations": 2}  # in place of a paper's sizes, where a stage has such a field
SIMULATIONS_ONLY = {"recalibrate", "finetune_ccvr"}  # real features, two exchanges in one: not between machines


@pytest.mark.parametrize("name", sorted(STAGES.keys() - SIMULATIONS_ONLY))
def test_every_stage(name: str, tmp_path: Path) -> None:
    fields = {f.name for f in dataclasses.fields(STAGES[name])}
    stage = STAGES[name](**{word: value for word, value in SMALL.items() if word in fields})
    trained = "fedetf" if stage.head == "etf" else "fedavg"
    model, method = model_for(trained), METHODS[trained]()
    world = World(federation(), {"own": model}, method, SETTINGS, tmp_path, stages=[stage])
    compare(world, Simulation(federation(), [model], method, **SETTINGS), [stage])
    delivered = sorted(path.name for path in (tmp_path / "state").rglob("model-*"))
    assert delivered == [f"model-{name}.safetensors"] * 4  # each site that holds data has its model


@pytest.mark.parametrize("name", sorted(SIMULATIONS_ONLY))
def test_stages_for_simulations_only_are_refused(name: str, tmp_path: Path) -> None:
    model, method = model_for("fedavg"), METHODS["fedavg"]()
    stage = STAGES[name]()
    world = World(federation(), {"own": model}, method, SETTINGS, tmp_path, stages=[stage])
    with pytest.raises(FedheadError):
        world.coordinator(world.grid()).run(method, [stage.after(method)])


@pytest.mark.parametrize("name", ["fedclassavg", "local", "fedproto", "ktpfl"])
def test_two_architectures(name: str, tmp_path: Path) -> None:
    models, method = {"batch": network("batch"), "group": network("group")}, METHODS[name]()
    assign = [0, 1, 0, 1, 0]
    own = {k: "group" for k, group in enumerate(assign) if group}
    world = World(federation(), models, method, SETTINGS, tmp_path, own=own)
    compare(world, Simulation(federation(), list(models.values()), method, assign=assign, **SETTINGS), [])


def test_two_architectures_calibrated_by_ccvr(tmp_path: Path) -> None:
    models, method = {"batch": network("batch"), "group": network("group")}, METHODS["fedclassavg"]()
    assign, stage = [0, 1, 0, 1, 0], STAGES["ccvr"](samples=20, epochs=1)
    own = {k: "group" for k, group in enumerate(assign) if group}
    world = World(federation(), models, method, SETTINGS, tmp_path, stages=[stage], own=own)
    compare(world, Simulation(federation(), list(models.values()), method, assign=assign, **SETTINGS), [stage])


def test_an_optimizer_that_survives_the_round_survives_at_the_site(tmp_path: Path) -> None:
    settings = {**SETTINGS, "local": dataclasses.replace(LOCAL, persistent=True)}
    model, method = network("group"), METHODS["fedavg"]()
    world = World(federation(), {"own": model}, method, settings, tmp_path)
    compare(world, Simulation(federation(), [model], method, **settings), [])


def test_equality_can_fail(tmp_path: Path) -> None:
    model, method = network("group"), METHODS["fedavg"]()
    world = World(federation(), {"own": model}, method, SETTINGS, tmp_path)
    other = Simulation(federation(), [model], method, seed=1, **SETTINGS)
    with pytest.raises(AssertionError):
        compare(world, other, [])
