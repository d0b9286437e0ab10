"""Targets that are no classes: how they are read, what is refused, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import succeed

import fedhead as fh
from fedhead.recipes import recipe_data as recipe_data
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
NUMBERS = X[:, 0] * 2
LABELS = (X[:, :3] > 0).astype(int)


def _with(value: float | None, row: int, column: int | None = None) -> Any:
    y: Any = np.array(NUMBERS if column is None else LABELS, np.float64)
    y[row if column is None else (row, column)] = np.nan if value is None else value
    return y


def test_what_can_not_be_a_target_is_named_with_its_place() -> None:
    for y, objective, message in [
        (_with(None, 7), "regression", "training y holds NaN in sample 7: leave"),
        (_with(np.inf, 3), "regression", "training y holds an infinite number in sample 3"),
        (_with(1e200, 3), "regression", "training y holds a number beyond float32 in sample 3"),
        ([*NUMBERS[:-1], None], "regression", "training y holds NaN in sample 39"),
        (_with(None, 5, 2), "multilabel", "training y holds NaN in sample 5, column 2"),
        (_with(0.5, 5, 1), "multilabel", r"training y holds 0\.5 in sample 5, column 1: labels are 0 or 1"),
        (NUMBERS, "multilabel", r"shape \(40,\): objective=multilabel needs 0 or 1 for each label, \[N, L\]"),
        (X.reshape(40, 2, 2), "regression", r"needs numbers, \[N\] or \[N, T\]"),
        (["a"] * 40, "regression", "training y"),
        ([[1, 0], [1]] * 20, "multilabel", "training y can't be read as one array: its targets differ in shape"),
        (np.zeros((40, 0)), "multilabel", r"shape \(40, 0\): objective=multilabel needs 0 or 1"),
        (np.ma.masked_array(NUMBERS, NUMBERS > 1), "regression", "training y has masked values"),
        (np.ma.masked_array(LABELS[:, 0], NUMBERS > 1), "multiclass", "training y has masked values"),
        (np.arange(40) % 3, "binary", "objective=binary is for 2 classes, y holds 3: use objective=multiclass"),
        (np.zeros(40), "binary", "y holds 1: give classes=2 if one is absent"),
        (NUMBERS, "multiclass", "labels must be whole: .*state objective=regression"),
        (LABELS, "multiclass", "state objective=multilabel"),
        (NUMBERS, "numbers", "numbers"),
    ]:
        with pytest.raises(fh.BadInput, match=message):
            fh.Federation.from_arrays(X, y, clients=2, objective=objective)
    with pytest.raises(fh.BadInput, match="test y has 3 columns, training y has 1: all need the same"):
        fh.Federation.from_arrays(X, NUMBERS, clients=2, test=(X, LABELS), objective="regression")
    with pytest.raises(fh.BadInput, match="names: 2 names were given, y has 3 columns"):
        fh.Federation.from_arrays(X, LABELS, clients=2, class_names=["a", "b"], objective="multilabel")
    with pytest.raises(fh.BadInput, match="client b y holds NaN in sample 1"):
        fh.Federation.from_clients({"a": (X, NUMBERS), "b": (X[:2], [0.0, np.nan])}, objective="regression")


def test_a_single_class_is_nothing_to_learn() -> None:
    with pytest.raises(fh.BadInput, match="there is only one class"):
        fh.run(fh.Federation.from_arrays(X, np.zeros(40), clients=2), "mlp", rounds=1)


def test_partitions_of_classes_are_refused_and_others_work() -> None:
    with pytest.raises(fh.BadInput, match=r"dirichlet\(0.5\) distributes classes, and objective=regression has none"):
        fh.Federation.from_arrays(X, NUMBERS, "dirichlet(0.5)", 2, objective="regression")

    def by_size(y: Any, clients: int, rng: Any) -> list[Any]:
        return np.array_split(np.argsort(y[:, 0]), clients)

    sorted_ = fh.Federation.from_arrays(X, NUMBERS, by_size, 2, objective="regression")
    assert sorted_.train.y[sorted_.indices[0]].max() <= sorted_.train.y[sorted_.indices[1]].min()
    natural = fh.Federation.from_arrays(X, NUMBERS, groups=np.arange(40) % 4, test=0.2, objective="regression")
    assert natural.sizes == (8,) * 4
    assert natural.counts().tolist() == [[8]] * 4
    with pytest.raises(fh.BadInput, match="matched needs classes"):
        fh.Federation.from_arrays(X, NUMBERS, test=(X, NUMBERS), client_test="matched", objective="regression")


@pytest.mark.parametrize(
    ("objective", "y"), [("regression", NUMBERS), ("multilabel", LABELS), ("binary", LABELS[:, 0])]
)
def test_a_saved_federation_is_the_same(objective: str, y: Any, tmp_path: Path) -> None:
    made = fh.Federation.from_arrays(X, y, clients=3, test=0.25, client_test=0.2, objective=objective)
    made.save(tmp_path / "f.npz")
    for stated in ({}, {"objective": objective}):
        again = fh.Federation.load(tmp_path / "f.npz", **stated)
        assert (again.objective, again.outputs, again.sizes) == (objective, made.outputs, made.sizes)
        torch.testing.assert_close(again.train.y, made.train.take(np.sort(np.concatenate(_all(made)))).y)
    assert repr(made)


def _all(made: fh.Federation) -> list[Any]:
    assert made.client_test is not None
    return [*made.indices, *made.client_test]


@pytest.mark.slow
def test_a_recipe_trains_for_an_objective_and_its_folder_is_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, y=NUMBERS, site=np.arange(40) % 2)
    keys = ["dataset=d.npz", "partition=natural", "clients=2", "test=0.3", "objective=regression", "rounds=2"]
    out = succeed(["fedhead", "run", "digits", *keys, "--out", "run", "--quiet"], tmp_path)
    result = fh.load(tmp_path / "run", device="cpu")
    assert result.recipe.objective == "regression"
    assert result.accuracy is None
    assert {"mae", "r2"} <= result.metrics.keys()
    assert result.predict(X).shape == (40,)
    assert "Traceback" not in str(out)


def test_recipes_say_what_does_not_go_together() -> None:
    for keys, message in [
        ({"objective": "binary"}, "objective=binary is for 2 classes, digits has 10"),
        ({"objective": "regression"}, "objective=regression: digits is a data set of classes"),
        ({"objective": "ordinal"}, "objective: 'ordinal' is not one of multiclass, binary"),
    ]:
        with pytest.raises(fh.BadInput, match=message):
            recipe_data.inputs(Recipe.from_flat({"dataset": "digits", **keys}))
    assert build_experiment(Recipe(dataset="digits", objective="multiclass")).models[0].classes == 10


def test_a_run_in_a_folder_goes_on_with_its_objective(tmp_path: Path) -> None:
    federation = fh.Federation.from_arrays(
        X, LABELS, clients=2, test=0.25, objective="multilabel", class_names=["a", "b", "c"]
    )
    first = fh.run(federation, "mlp(hidden=[4])", rounds=1, out=tmp_path / "r")
    more = fh.run(federation, "mlp(hidden=[4])", rounds=2, out=tmp_path / "r", resume=True)
    assert len(more.rows) == 2
    loaded = fh.load(tmp_path / "r", device="cpu")
    np.testing.assert_array_equal(loaded.predict(X), more.predict(X))
    assert loaded.partition.to_numpy().tolist() == first.partition.to_numpy().tolist() == [[15], [15]]


def test_class_weights_that_the_loss_of_a_batch_can_not_hold_are_refused() -> None:
    federation = fh.Federation.from_arrays(X, LABELS[:, 0], "iid", clients=2)
    for weight in (1e-13, 1e30):
        with pytest.raises(fh.BadInput, match=r"class_weights: 1e.* is too far from 1 .* divide all by their largest"):
            fh.run(federation, "mlp(hidden=[3])", rounds=1, class_weights=[weight, weight])


def test_class_weights_may_be_an_array_as_scikit_learn_returns_them() -> None:
    federation = fh.Federation.from_arrays(X, LABELS[:, 0], "iid", clients=2, test=0.2)
    settings: dict[str, Any] = {"rounds": 1, "executor": "loop"}
    expected = fh.run(federation, "mlp(hidden=[3])", class_weights=[1.0, 3.0], **settings).test_loss
    for given in (np.array([1.0, 3.0]), torch.tensor([1.0, 3.0])):
        assert fh.run(federation, "mlp(hidden=[3])", class_weights=given, **settings).test_loss == expected


def test_a_regression_is_plotted_by_its_test_loss() -> None:
    federation = fh.Federation.from_arrays(X, NUMBERS, "iid", clients=2, test=0.2, objective="regression")
    (axes,) = fh.run(federation, "mlp(hidden=[3])", rounds=2, executor="loop").plot().axes
    assert len(axes.lines[0].get_xdata()) == 2
