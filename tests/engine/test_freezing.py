"""Frozen parameters stay as they are, bit for bit: whenever it was said, in every method, on every executor."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from simulations import make_simulation, run
from small import federation, network

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe
from fedhead.stages import STAGES

LOCAL = LocalTraining(epochs=1, batch_size=8, optimizer=SGD(0.1, momentum=0.9, weight_decay=0.01))


def simulate(name: str, frozen: str, executor: Executor, rounds: int = 2) -> Simulation:
    model = network("batch", METHODS[name].head)
    model.get_submodule(frozen).requires_grad_(False)  # after the model was split
    made = make_simulation(federation(), [model], METHODS[name](), rounds=rounds, local=LOCAL).using(executor)
    for number in range(1, rounds + 1):
        train_round(made, number)
    return made


def moved(simulation: Simulation, part: str) -> dict[str, bool]:
    """Return whether each parameter of a part has moved, on the server or at some client."""
    first = simulation.clients.initial[0].part(part).params
    held = [simulation.server, *simulation.states.kept.values()]
    copies: dict[str, list[torch.Tensor]] = {name: [] for name in first}
    for entries in (entry for tree in held for entry in tree.values() if isinstance(entry, Tree)):
        for name in copies.keys() & entries.keys():
            if not (entries[name] == 0).all():  # control variates and velocities bear the names of weights
                copies[name].append(entries[name])
    return {name: any(not torch.equal(t, first[name]) for t in found) for name, found in copies.items() if found}


@pytest.mark.slow
@pytest.mark.parametrize("executor", [Loop(), Stack()], ids=["loop", "stack"])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_frozen_extractor_does_not_move(name: str, executor: Executor) -> None:
    made = simulate(name, "extractor", executor)
    assert not any(moved(made, "extractor").values())
    assert any(moved(made, "classifier").values())


def test_a_rule_of_the_servers_does_not_move_what_is_frozen() -> None:
    assert moved(simulate("fednh", "extractor", Loop()), "classifier")["classifier.weight"]
    assert not any(moved(simulate("fednh", "classifier", Loop()), "classifier").values())


def test_scaffold_has_control_variates_of_trained_parameters_only() -> None:
    made = simulate("scaffold", "extractor", Loop(), rounds=1)
    trained = set(made.server["model"].params) - made.task.model.frozen
    assert made.server["control"].keys() == trained
    assert all(state["control"].keys() == trained for state in made.states.kept.values())


def test_running_statistics_of_a_frozen_part_move_as_in_pytorch() -> None:
    made = simulate("fedavg", "extractor", Loop(), rounds=1)
    assert any(not torch.equal(t, made.clients.initial[0][name]) for name, t in made.server["model"].stats.items())


def test_a_phase_with_nothing_to_train_is_refused_before_any_round() -> None:
    with pytest.raises(BadInput, match=r"FedRep\.loss trains only classifier.*freeze less"):
        simulate("fedrep", "classifier", Loop(), rounds=0)


@pytest.mark.parametrize("any_head", [False, True])
def test_a_frozen_classifier_is_not_calibrated(any_head: bool) -> None:
    made = simulate("fedavg", "classifier", Loop(), rounds=0)
    with pytest.raises(BadInput, match=r"ccvr: 'classifier\.bias' is frozen"):
        run(made, stages=[STAGES["ccvr"](any_head=any_head)])


def test_fh_run_holds_what_was_frozen_after_the_build() -> None:
    model = fh.build("mlp", (1, 6, 6), classes=3)
    model.extractor.requires_grad_(False)
    before = {name: p.clone() for name, p in model.extractor.named_parameters()}
    result = fh.run(federation(), model, rounds=2, lr=0.5, weight_decay=0.1)
    weights = result.weights
    assert weights is not None
    assert all(torch.equal(weights[f"extractor.{name}"], p) for name, p in before.items())
    assert not torch.equal(weights["classifier.weight"], model.classifier.weight)


@pytest.mark.parametrize(
    ("names", "frozen"),
    [
        (("extractor",), {"extractor.1.0.weight", "extractor.1.0.bias"}),
        (("classifier.bias",), {"classifier.bias"}),
        (("*.bias",), {"extractor.1.0.bias", "classifier.bias"}),
    ],
)
def test_recipes_freeze_by_part_name_or_pattern(names: tuple[str, ...], frozen: set[str]) -> None:
    recipe = Recipe(dataset="digits", model="mlp", model_parameters={"hidden": [8]}, freeze=names)
    assert build_experiment(recipe).models[0].frozen == frozen


def test_recipes_refuse_to_freeze_nothing_or_everything() -> None:
    with pytest.raises(BadInput, match=r"unknown name in freeze 'extractr': did you mean 'extractor'\?"):
        build_experiment(Recipe(dataset="digits", freeze=("extractr",)))
    with pytest.raises(BadInput, match=r"freeze: all parameters are frozen"):
        build_experiment(Recipe(dataset="digits", freeze=("extractor", "classifier")))


def test_a_recipe_that_freezes_all_that_a_phase_trains_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "digits", "method=fedrep", "freeze=[classifier]", "--out", str(tmp_path / "run")]
    assert call(words) == 2
    assert "FedRep.loss trains only classifier" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
