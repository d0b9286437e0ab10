"""`fedhead.Result`: data frames, predictions, comparisons, and the way back to the user's own module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import fedhead as fh
from fedhead.api import trained
from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe


class Net(nn.Module):
    """A user's network: what `split` changes in its copy (dropout, BatchNorm) must be as it was in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def arrays(rows: int = 90) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    y = np.arange(rows) % 3
    return generator.normal(size=(rows, 5)).astype(np.float32) + 2 * np.eye(3, 5, dtype=np.float32)[y], y


@pytest.fixture(scope="module")
def run() -> fh.Result:
    torch.manual_seed(0)
    x, y = arrays()
    federation = fh.Federation.from_arrays(
        x,
        y,
        partition="dirichlet(0.5)",
        clients=3,
        test=0.2,
        client_test=0.2,
        class_names=["a", "<b>", "c"],
        normalize="standard",
    )
    model = fh.split(Net(), classifier="head")
    return fh.run(
        federation,
        model,
        "fedprox",
        rounds=3,
        lr=0.1,
        batch_size=8,
        stages=[fh.CCVR(samples=30, epochs=2), "finetune"],
        metrics=["f1"],
        executor="loop",
        device="cpu",
    )


def test_records_are_data_frames(run: fh.Result) -> None:
    history = run.history
    assert history.index.tolist() == [1, 2, 3]
    assert history["accuracy"].tolist() == [row["accuracy"] for row in run.rows]
    assert history["f1"].iloc[-1] == run.metrics["f1"]
    assert run.clients["samples"].sum() == run.partition.to_numpy().sum()
    assert run.clients["accuracy"].mean() == pytest.approx(run.personal)
    assert run.clients["accuracy_finetune"].tolist() == pytest.approx(run.stages["finetune"].metrics["clients"])
    assert run.partition.columns.tolist() == ["a", "<b>", "c"]


def test_the_users_own_module_comes_back_with_trained_weights(run: fh.Result) -> None:
    module = run.module()
    assert isinstance(module, Net)
    assert isinstance(module.body[3], nn.Dropout)
    assert module.state_dict().keys() == Net().state_dict().keys()
    Net().load_state_dict(module.state_dict())
    federation = run.trained.clients.federation
    x = federation.test.x
    with torch.no_grad():
        logits = module(federation.transform(x))
    assert torch.equal(logits.argmax(1), torch.from_numpy(run.predict(x)))
    np.testing.assert_allclose(logits.numpy(), run.scores(x), atol=1e-6)
    own, tuned, calibrated = run.module(client=1), run.module(client=1, stage="finetune"), run.module(stage="ccvr")
    assert torch.equal(own.head.weight, module.head.weight)  # what FedProx's clients start from is the global model
    assert not torch.equal(tuned.head.weight, module.head.weight)
    assert not torch.equal(calibrated.head.weight, module.head.weight)
    assert torch.equal(calibrated.body[0].weight, module.body[0].weight)


@pytest.mark.parametrize("head", ["etf", "prototype"])
def test_a_head_that_was_changed_is_put_into_the_module(head: str) -> None:
    x, y = arrays()
    federation = fh.Federation.from_arrays(x, y, clients=3, test=0.2)
    model = fh.with_head(fh.split(Net(), classifier="head"), head)
    found = fh.run(federation, model, "fedetf" if head == "etf" else "fednh", rounds=1, executor="loop", device="cpu")
    module = found.module()
    assert isinstance(module, Net)
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), found.scores(x), atol=1e-6)


def test_a_built_in_model_comes_back_as_its_parts_in_a_row() -> None:
    x, y = arrays()
    federation = fh.Federation.from_arrays(x, y, clients=3, test=0.2)
    found = fh.run(federation, "mlp(hidden=[4])", rounds=1, executor="loop", device="cpu")
    module = found.module()
    assert list(module.state_dict()) == list(found.weights or ())
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), found.scores(x), atol=1e-6)


def test_predictions_are_tested_as_the_run_tests_them(run: fh.Result) -> None:
    held = run.trained.clients.federation.test
    found = run.evaluate(held.x, held.y, ["f1"])
    assert found == {"accuracy": run.accuracy, "loss": pytest.approx(run.test_loss), **run.metrics}
    assert run.evaluate(held.x, held.y, stage="ccvr")["accuracy"] == run.stages["ccvr"].accuracy
    names = np.array(["a", "<b>", "c"])
    assert run.evaluate(held.x, names[held.y])["accuracy"] == run.accuracy
    table = run.confusion()
    assert np.trace(table.to_numpy()) / table.to_numpy().sum() == pytest.approx((run.accuracy or 0) / 100)
    assert table.index.tolist() == ["a", "<b>", "c"]


def test_what_is_shown(run: fh.Result) -> None:
    assert "path=" not in repr(run)
    assert repr(Recipe(dataset="digits", rounds=3)) == "Recipe(dataset='digits', rounds=3)"


def test_a_plot_shows_the_rounds_and_the_stages(run: fh.Result) -> None:
    figure = run.plot()
    (axes,), (legend,) = figure.axes, figure.legends
    assert axes.lines[0].get_ydata() == pytest.approx([row["accuracy"] for row in run.rows])
    assert [text.get_text() for text in legend.get_texts()] == ["after ccvr", "after finetune"]
    with pytest.raises(BadInput, match="plot: no round has 'loss_of_x'; there is "):
        run.plot("loss_of_x")


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda run: run.module(client=3), "client: 3 is out of range, the clients are 0 … 2"),
        (lambda run: run.module(stage="cvr"), "unknown stage 'cvr': did you mean 'ccvr'"),
        (lambda run: run.predict(np.zeros((2, 4))), r"x holds samples \(4,\) float32, the run's are"),
        (lambda run: run.predict(np.zeros(5)), r"x has shape \(5,\), .* give a batch, x\[None\] for one"),
        (lambda run: run.predict(np.full((2, 5), np.nan)), "x holds NaN, first in sample 0: fill it"),
        (lambda run: run.predict(pd.DataFrame({"a": ["b"]})), r"x is a data frame .* fedhead\.TableColumns"),
        (lambda run: run.evaluate(np.zeros((2, 5)), [0]), "x has 2 samples but y has 1 labels"),
        (lambda run: run.evaluate(np.zeros((2, 5)), [0, 1], ["f2"]), "metric"),
    ],
)
def test_what_is_not_there_is_named(run: fh.Result, ask: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        ask(run)


@pytest.mark.parametrize("named", [False, True])
def test_missing_values_are_filled_as_those_of_the_training_data(tmp_path: Path, named: bool) -> None:
    x, y = arrays(60)
    x[::7, 1] = np.nan
    given = {"x": x} if named else x
    federation = fh.Federation.from_arrays(given, y, clients=2, test=0.2, missing="mean", normalize="standard")
    assert federation.test is not None
    mean = np.nanmean(x, axis=0)
    assert federation.missing["x" if named else ""].indicated == (1,)
    net = fh.split(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)), classifier="1") if not named else Named.split()
    found = fh.run(federation, net, rounds=1, out=tmp_path / "run")
    new = np.array([[np.nan, np.nan, 0, 1, 2], [1, 2, 3, 4, 5]], np.float32)
    filling = federation.missing["x" if named else ""].mean
    assert filling == pytest.approx(mean, abs=0.5)  # of the training samples alone
    by_hand = np.array([[filling[0], filling[1], 0, 1, 2, 1], [1, 2, 3, 4, 5, 0]], np.float32)
    wrap = (lambda a: {"x": a}) if named else (lambda a: a)
    for result in (found, fh.load(tmp_path / "run", model=net)):
        assert np.array_equal(result.scores(wrap(new)), result.scores(wrap(by_hand)))
        assert not np.array_equal(result.scores(wrap(new))[0], result.scores(wrap(new))[1])
        inputs = result.transform(wrap(new))  # filled and normalized
        with torch.no_grad():
            scores = result.module()(inputs["x"] if named else inputs)
        np.testing.assert_allclose(scores, result.scores(wrap(new)), atol=1e-6)
        by_hand_nan = by_hand.copy()
        by_hand_nan[0, 0] = np.nan
        with pytest.raises(BadInput, match="x holds NaN, first in sample 0: give the table's own columns"):
            result.predict(wrap(by_hand_nan))


def test_the_clients_are_those_of_the_round_that_was_kept(run: fh.Result) -> None:
    first = run.rows[0] | {"kept": True, "clients": [1.0, 2.0, 3.0]}
    best = fh.Result(replace(run.record, rows=[first, *run.rows[1:]]), lambda: run.trained)
    assert best.best_round == 1
    assert best.clients["accuracy"].tolist() == [1.0, 2.0, 3.0]


class Named(nn.Module):
    """A network whose input has a name."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x))

    @classmethod
    def split(cls) -> fh.SplitModel:
        return fh.split(cls(), classifier="fc")


def test_a_method_without_a_global_model_asks_for_a_client() -> None:
    x, y = arrays()
    federation = fh.Federation.from_arrays(x, y, clients=3, client_test=0.2)
    found = fh.run(federation, "mlp(hidden=[4])", "local", rounds=1, executor="loop", device="cpu")
    with pytest.raises(BadInput, match="local leaves no global model, every client has its own: name one, client=0"):
        found.predict(x)
    assert found.predict(x, client=2).shape == (90,)


def test_scores_do_not_depend_on_how_many_samples_are_predicted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = arrays(30)
    federation = fh.Federation.from_arrays(x, y, partition="iid", clients=2, normalize="standard")
    found = fh.run(federation, fh.split(Net(), classifier="head"), rounds=1, device="cpu")
    whole = found.scores(x, client=0)
    monkeypatch.setattr(trained, "BATCH", 7)
    np.testing.assert_allclose(found.scores(x, client=0), whole, atol=1e-6)


def test_what_is_printed_is_short_and_a_figure_shows_itself(run: fh.Result) -> None:
    assert len(str(run.stages)) < 200
    assert f"accuracy={run.stages['ccvr'].accuracy}" in str(run.stages)
    assert run.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]  # notebooks call it


def test_the_confusion_matrix_after_cached_features_is_that_of_the_samples() -> None:
    federation = fh.Federation.load("digits", "iid", clients=2, subset=60)
    settings: dict[str, Any] = {"rounds": 1, "freeze": ["extractor"], "executor": "loop"}
    plain, cached = (fh.run(federation, "mlp(hidden=[8])", cache_features=c, **settings) for c in (None, True))
    assert plain.confusion().equals(cached.confusion())
