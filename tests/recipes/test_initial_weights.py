"""Warm start: first weights from a state dict, a file or another run, in Python and in recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe, load
from fedhead.runs.run import execute

SMALL = ["rounds=1", "clients=2", "subset=60", "model.hidden=[4]"]


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))


def first(weights: Any, net: nn.Module) -> fh.Tree:
    """The model before the first round: a learning rate of almost 0 leaves it as it is."""
    federation = fh.Federation.load("digits", clients=2, subset=60)
    model = fh.split(net, classifier="3")
    settings: dict[str, Any] = {"rounds": 1, "lr": 1e-30, "executor": "loop", "device": "cpu"}
    return fh.run(federation, model, weights=weights, **settings).weights or fh.Tree()


def test_a_state_dict_and_files_of_it_are_the_first_weights(tmp_path: Path) -> None:
    wanted = net()
    save_file(wanted.state_dict(), tmp_path / "w.safetensors")
    torch.save(wanted.state_dict(), tmp_path / "w.pt")
    for source in (wanted.state_dict(), tmp_path / "w.safetensors", str(tmp_path / "w.pt")):
        found = first(source, net())
        assert torch.equal(found["extractor.1.weight"], wanted[1].weight)
        assert torch.equal(found["classifier.bias"], wanted[3].bias)


def test_a_recipe_starts_from_another_run_and_from_its_exported_weights(tmp_path: Path) -> None:
    execute(load("digits", SMALL), tmp_path / "run", Compute(executor="loop"))
    trained = fh.load(tmp_path / "run")
    trained.export(tmp_path / "w.safetensors")
    for name in ("run", "w.safetensors"):
        recipe = load("digits", [*SMALL, f"weights={tmp_path / name}"])
        (model,) = build_experiment(recipe).models
        assert torch.equal(model.classifier.weight, (trained.weights or {})["classifier.weight"])
    execute(recipe, tmp_path / "warm", Compute(executor="loop"))
    save_file({**trained.module().state_dict(), "classifier.bias": torch.zeros(10)}, tmp_path / "w.safetensors")
    with pytest.raises(BadInput, match=r"w.safetensors changed since .*warm was begun: put the old file back"):
        execute(recipe.override(["rounds=2"]), tmp_path / "warm", resume=True)


def test_a_run_of_python_is_resumed_with_the_same_weights_only(tmp_path: Path) -> None:
    federation = fh.Federation.load("digits", clients=2, subset=60)
    settings: dict[str, Any] = {"executor": "loop", "device": "cpu", "out": tmp_path / "run"}
    state = net().state_dict()
    fh.run(federation, fh.split(net(), classifier="3"), rounds=1, weights=state, **settings)
    fh.run(federation, fh.split(net(), classifier="3"), rounds=2, weights=state, resume=True, **settings)
    with pytest.raises(BadInput, match="begun with another weights: it was digest"):
        fh.run(
            federation, fh.split(net(), classifier="3"), rounds=3, weights=net().state_dict(), resume=True, **settings
        )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda w: {n: t for n, t in w.items() if n != "1.bias"},
            r"the state dict lacks '1.bias'",
        ),
        (lambda w: {**w, "4.bias": torch.zeros(3)}, r"unknown name '4.bias'.*\(1 are unexpected\)"),
        (lambda w: {**w, "3.bias": torch.zeros(7)}, r"'3.bias' is \(7,\), the model needs \(10,\)"),
        (lambda w: {**w, "3.bias": torch.full((10,), torch.nan)}, "'3.bias' holds NaN"),
        (lambda w: {}, "weights: give a state dict"),
        (lambda w: 3, "weights is int"),
        (lambda w: "nowhere.safetensors", "nowhere.safetensors is not there"),
        (lambda w: Path(__file__).parent, "is no run folder with a checkpoint"),
    ],
)
def test_weights_that_do_not_fit_are_named(change: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        first(change(net().state_dict()), net())


def test_a_recipe_says_where_its_weights_are() -> None:
    assert Recipe(dataset="digits").weights is None
    with pytest.raises(BadInput, match=r"nowhere.pt is not there"):
        build_experiment(Recipe(dataset="digits", weights="nowhere.pt"))


def test_a_state_dict_of_the_extractor_alone_leaves_the_classifier(tmp_path: Path) -> None:
    pretrained = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 4), nn.ReLU()))  # as the mlp's extractor
    (plain,) = build_experiment(load("digits", SMALL)).models
    for number, more in enumerate(({}, {"fc.weight": torch.zeros(1000, 4), "fc.bias": torch.zeros(1000)})):
        path = tmp_path / f"w{number}.pt"
        torch.save({**pretrained.state_dict(), **more}, path)
        (model,) = build_experiment(load("digits", [*SMALL, f"weights={path}", "freeze=[extractor]"])).models
        assert torch.equal(model.state_dict()["extractor.1.0.weight"], pretrained.state_dict()["1.0.weight"])
        assert torch.equal(model.classifier.weight, plain.classifier.weight)
        assert sorted(model.frozen) == ["extractor.1.0.bias", "extractor.1.0.weight"]
    other = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 5), nn.ReLU()))
    torch.save(other.state_dict(), path)
    with pytest.raises(BadInput, match=r"'1.0.weight' is \(5, 64\), the model needs \(4, 64\)"):
        build_experiment(load("digits", [*SMALL, f"weights={path}"]))
    torch.save({**pretrained.state_dict(), "a.weight": torch.zeros(1), "b.weight": torch.zeros(1)}, path)
    with pytest.raises(BadInput, match=r"lacks 'extractor.1.0.weight' of the model"):
        build_experiment(load("digits", [*SMALL, f"weights={path}"]))
