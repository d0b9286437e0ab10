"""A run opened again: where its checkpoint left it, on the data and with the rounding that it was made with."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.simulation import Simulation
from fedhead.recipes import recipe_data as recipe_data
from fedhead.recipes.experiment import prepare
from fedhead.recipes.recipe import load
from fedhead.runs.reopen import _executor, fresh, reopen
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, PARTITION, RESULT

RECIPE = load("digits", ["rounds=2", "model.hidden=[8]", "clients=4", "participation=0.5", "subset=200"]).override(
    ["method=scaffold", "momentum=0", "lr=0.01"]
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reopen") / "run"
    execute(RECIPE, path, Compute(executor="stack", device="cpu"))
    return path


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_server_and_clients_stand_where_the_run_ended(run: Path) -> None:
    trained = reopen(run, device="cpu")
    number, state, _ = RunFolder.open(run).rewind() or (0, {}, [])
    assert trained.round == number == 2
    now, before = trained.simulation, fresh(trained)
    assert now.states.kept.keys() == {int(k) for k in state["clients"]}
    assert not before.states.kept
    for k, kept in state["clients"].items():
        for name, value in kept.leaves().items():
            assert torch.equal(now.states[int(k)].leaves()[name], value)
    for name, value in state["server"].leaves().items():
        assert torch.equal(now.server.leaves()[name], value)
    assert any(not torch.equal(value, now.server.leaves()[name]) for name, value in before.server.leaves().items())


def test_it_goes_on_with_the_executor_and_the_precision_of_the_run_where_it_can(run: Path) -> None:
    assert reopen(run, device="cpu").executor.name == "stack"
    assert not reopen(run, device="cpu").simulation.clients.bf16
    RunFolder.open(run).save_environment({"device": "cuda", "executor": "lanes", "precision": "bf16"})
    moved = reopen(run, device="cpu")  # a run of a GPU, on a machine without one
    assert moved.executor.name == "loop"
    assert moved.simulation.clients.bf16
    assert fresh(moved).clients.bf16


def test_other_data_and_runs_without_a_checkpoint_are_refused(run: Path) -> None:
    other = recipe_data.federation(RECIPE.override(["partition_seed=9"]), None)
    assert not np.array_equal(other.indices[0], recipe_data.federation(RECIPE, None).indices[0])
    (run / PARTITION).unlink()
    RunFolder.open(run).save_split(other)
    with pytest.raises(BadInput, match="the data has changed"):
        reopen(run, device="cpu")
    (run / CHECKPOINT).unlink()
    (run / RESULT).unlink()
    with pytest.raises(BadInput, match=f"no {CHECKPOINT} yet: let the run come to its end first"):
        reopen(run, device="cpu")


@pytest.mark.parametrize(
    ("begun", "device", "name"),
    [
        ({"executor": "stack", "device": "cpu"}, "cpu", "stack"),
        ({"executor": "lanes", "device": "cuda"}, "cpu", "loop"),
        ({"executor": "flower", "device": "cpu"}, "cpu", "loop"),
        ({}, "cpu", "loop"),
    ],
)
def test_a_run_is_reopened_with_an_executor_that_runs_here(begun: dict[str, str], device: str, name: str) -> None:
    simulation = Simulation(*prepare(RECIPE), Compute(device=device, executor="loop"))
    assert _executor(begun, simulation, ()).name == name
