"""Federations of several architectures, as users ask for them: recipes and Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mixed import RECIPE, pair, perceptron
from simulations import RowFunction
from small import federation
from tiers import quick
from torch import nn

import fedhead
from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.compute import Compute
from fedhead.models.build_many import build_many
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder


def test_a_recipe_names_several_models() -> None:
    assert Recipe.from_yaml(RECIPE.to_yaml()) == RECIPE
    made = build_experiment(RECIPE).models
    assert [m.features for m in made] == [24, 24, 24]
    sizes = [sum(p.numel() for p in m.extractor.parameters()) for m in made]
    assert len(set(sizes)) == 3
    overridden = RECIPE.override(["model=[mlp, digitscnn]"])
    assert overridden.model == ("mlp", "digitscnn")
    assert not overridden.model_parameters


def test_a_mixed_recipe_runs_to_its_end_with_small_messages(tmp_path: Path) -> None:
    figures = execute(RECIPE, tmp_path / "run", Compute(device="cpu", executor="loop"))
    classifier = 4 * (24 * 10 + 10)
    assert figures["bytes_up"] == figures["bytes_down"] == 2 * 6 * classifier
    assert figures["client_bytes"] == {"up": classifier, "down": classifier}
    assert [row["participants"] for row in RunFolder.open(tmp_path / "run").metrics()] == [6, 6]
    assert len(figures["clients"]) == 6
    assert figures["accuracy"] is None
    assert 0 < figures["personal"] <= 100


@pytest.mark.parametrize("method", quick(["ktpfl", "fedproto", "local"], "fedproto"))
def test_the_alternatives_run_on_the_same_federation(method: str, tmp_path: Path) -> None:
    recipe = RECIPE.override([f"method={method}", "public=digits", "public_samples=40"])
    figures = execute(recipe, tmp_path / "run", Compute(device="cpu", executor="loop"))
    assert 0 < figures["personal"] <= 100


class Stopped(BaseException):
    """Stands for a kill: nothing on the way catches it."""


@pytest.mark.parametrize("method", quick(["fedclassavg", "ktpfl"], "ktpfl"))
def test_a_stopped_run_of_a_mixed_federation_ends_as_if_it_had_not_been(method: str, tmp_path: Path) -> None:
    recipe = RECIPE.override(
        [f"method={method}", "public=digits", "public_samples=40", "rounds=3", "participation=0.5"]
    )
    settings = Compute(device="cpu", executor="loop")

    def stop(row: dict[str, object]) -> None:
        raise Stopped

    whole = execute(recipe, tmp_path / "whole", settings)
    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "stopped", settings, observers=[RowFunction(stop)])
    again = execute(recipe, tmp_path / "stopped", settings, resume=True)
    for name in ("personal", "clients", "bytes_up", "bytes_down", "client_bytes"):
        assert again[name] == whole[name]


def test_all_start_from_one_classifier() -> None:
    made = build_many([("mlp", {}), ("digitscnn", {}), ("resnet20", {})], (1, 8, 8), 10, seed=3)
    assert [m.features for m in made] == [512] * 3  # the default, where the architectures' own features differ
    assert all(made[0].classifier.weight.equal(m.classifier.weight) for m in made)
    assert [m.features for m in build_many([("mlp", {}), ("mlp", {"hidden": (50, 200)})], (1, 8, 8), 10, 0)] == [
        200,
        200,
    ]


def test_python_takes_names_modules_and_an_assignment() -> None:
    fed = federation()
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 3))
    mine = fedhead.split(net, classifier="3")
    run = fedhead.run(
        fed,
        [mine, fedhead.build("mlp", (1, 6, 6), 3, hidden=(20,))],
        "fedclassavg",
        rounds=1,
        batch_size=4,
        device="cpu",
    )
    assert run.personal is not None
    run = fedhead.run(fed, pair(), "fedclassavg", rounds=1, batch_size=4, assign=[1, 1, 0, 0, 1], device="cpu")
    assert "extractor.1.weight" in run.states[0]["own"]
    run = fedhead.run(fed, ["mlp", "digitscnn"], "fedclassavg", rounds=1, batch_size=4, device="cpu")
    assert run.server["model"]["classifier.weight"].shape == (3, 512)


def test_digits_hold_out_their_own_rows_as_public_data() -> None:
    fed = Federation.load("digits", "iid", 4, public="digits")
    assert fed.public is not None
    assert len(fed.public.y) == 1437 // 5
    assert sum(fed.sizes) == 1437 - 1437 // 5
    shared, held = (np.unique(s.x.flatten(1).numpy(), axis=0) for s in (fed.public, fed.train))
    both = np.unique(np.concatenate([shared, held]), axis=0)
    assert len(both) == len(shared) + len(held)


# -- bad input ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=[mlp, resnt20]", "unknown model 'resnt20': did you mean 'resnet20'"),
        ("model=[]", "model: .*at least one"),
        ("model=['mlp(hiden=[3])']", "unknown parameter of model mlp 'hiden': did you mean 'hidden'"),
        ("model=['mlp(hidden=3)']", r"hidden: 3 is not a list"),
        ("model=['mlp(hidden=[3)']", "can't be read: write name or name"),
        ("model=['mlp hidden']", "unknown model 'mlp hidden'"),
        ("model.nonsense=3", "unknown parameter of model mlp 'nonsense'"),
        ("method=fedavg", r"client 1: fedavg averages 'extractor.*as fedclassavg does"),
        ("public=cifar10", r"public: samples of cifar10 have shape \(3, 32, 32\), client 0"),
        ("public_samples=0", "public_samples: 0 is out of range"),
        ("model=['mlp(feature_layer=24)','mlp(feature_layer=32)']", "client 1: its features have 32 dimensions"),
        ("model=[mlp,'mlp(head=prototype)']", r"client 1: fedclassavg averages .*same head"),
        ("model=[mlp,'mlp(norm=batch)'] ; batch_size=1", r"client 1: batch_size 1 .*BatchNorm"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(override: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build_experiment(RECIPE.override(override.split(" ; ")))


def test_ktpfl_without_public_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="ktpfl needs public data"):
        execute(RECIPE.override(["method=ktpfl"]), tmp_path / "run", Compute(device="cpu", executor="loop"))


def test_bad_assignments_and_modules_are_refused() -> None:
    fed = federation()
    with pytest.raises(BadInput, match="assign gives 2 clients a model, but there are 5"):
        fedhead.run(fed, pair(), "fedclassavg", assign=[0, 1])
    with pytest.raises(BadInput, match="client 2: assign gives it model 7"):
        fedhead.run(fed, pair(), "fedclassavg", assign=[0, 1, 7, 0, 0])
    with pytest.raises(BadInput, match="client 1: its model is Linear: wrap it first"):
        fedhead.run(fed, [perceptron(), nn.Linear(3, 3)], "fedclassavg")  # type: ignore[list-item]  # the fault at hand
    with pytest.raises(BadInput, match="client 2: its model can't be used: classifier: it has 2 outputs"):
        fedhead.run(fed, [perceptron(), perceptron(classes=2)], "fedclassavg", assign=[0, 0, 1, 0, 1])
    with pytest.raises(BadInput, match="empty list"):
        fedhead.run(fed, [], "fedclassavg")
