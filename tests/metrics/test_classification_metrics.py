"""Metrics equal scikit-learn's on every executor; one without a value is a note in the record, never a lost run."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from simulations import make_simulation
from small import federation, network

from fedhead import SGD, FedAvg, Federation, LocalTraining, Undefined, run
from fedhead.core.system.errors import BadInput
from fedhead.core.training.objectives import OBJECTIVES
from fedhead.engine.rounds import rounds
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.metrics.predictions import MULTICLASS, Predictions
from fedhead.metrics.registry import METRICS, check, find, measure, measure_clients, names

COUNTED = {
    "balanced_accuracy": sk.balanced_accuracy_score,
    "matthews_corrcoef": sk.matthews_corrcoef,
    **{
        f"{name}({average})": partial(function, average=average, zero_division=0)
        for name, function in (("f1", sk.f1_score), ("precision", sk.precision_score), ("recall", sk.recall_score))
        for average in ("macro", "weighted", "micro")
    },
}
PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)


def predictions(scores: Any, y: Any, classes: int | None = None) -> Predictions:
    scores, y = torch.as_tensor(np.asarray(scores, np.float64)), torch.as_tensor(np.asarray(y))
    return Predictions(y, scores.argmax(-1), MULTICLASS.losses(scores, y), classes or scores.shape[-1], scores)


def of_pairs(y: Any, predicted: Any, classes: int) -> Predictions:
    return predictions(np.eye(classes)[predicted], y)


# -- against scikit-learn -----------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")  # scikit-learn leaves those out, as we do
@pytest.mark.filterwarnings("ignore:A single label was found")
@settings(deadline=None, max_examples=15)
@given(PAIRS)
def test_metrics_of_counts_equal_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    y, predicted = (np.array(side) for side in zip(*pairs, strict=True))
    found = measure(find(COUNTED), of_pairs(y, predicted, classes=6)).values  # the last class has no samples
    for name, function in COUNTED.items():
        assert found[name] == pytest.approx(function(y, predicted), abs=1e-9), name
    kappa = measure(find(["cohen_kappa"]), of_pairs(y, predicted, classes=6))
    if "cohen_kappa" not in kappa.notes:
        assert kappa.values["cohen_kappa"] == pytest.approx(sk.cohen_kappa_score(y, predicted), abs=1e-9)


@settings(deadline=None, max_examples=15)
@given(st.integers(2, 7), st.integers(0, 10**6), st.booleans())
def test_metrics_of_scores_equal_those_of_scikit_learn(classes: int, seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), rng.integers(0, classes, 40)])
    logits = rng.normal(0, 2, (len(y), classes))
    test = predictions(np.round(logits) if ties else logits, y)
    found = measure(find(["auroc", "auroc(weighted)", "nll", "brier", "topk(k=1)", "topk(2)"]), test)
    p = test.y_proba
    multi = {"multi_class": "ovr"} if classes > 2 else {}
    for average in ("macro", "weighted"):
        name = "auroc" if average == "macro" else "auroc(weighted)"
        assert found.values[name] == pytest.approx(
            sk.roc_auc_score(y, test.y_score, average=average, **multi), abs=1e-9
        )
    assert found.values["nll"] == pytest.approx(sk.log_loss(y, p), abs=1e-9)
    assert found.values["brier"] == pytest.approx(sk.brier_score_loss(y, p[:, 1] if classes == 2 else p), abs=1e-9)
    certain = predictions(1e4 * logits, y)  # of some true classes the probability is 0, which scikit-learn clips
    assert measure(find(["nll"]), certain).values["nll"] == pytest.approx(sk.log_loss(y, certain.y_proba), abs=1e-9)
    if classes > 2:
        expected = sk.top_k_accuracy_score(y, test.scores, k=2)  # type: ignore[arg-type]
        assert found.values["topk(2)"] == pytest.approx(expected, abs=1e-9)
        assert found.values["topk(k=1)"] == pytest.approx(sk.top_k_accuracy_score(y, test.scores, k=1), abs=1e-9)


def test_calibration_error_by_hand() -> None:
    # Four samples of confidences 0.9, 0.9, 0.6, 0.6; right are the first and both of 0.6. In 5 bins 0.9 is in the last
    # one and 0.6, an upper edge, in the third: ECE = 2/4 |1/2 - 0.9| + 2/4 |1 - 0.6| = 0.2 + 0.2.
    p = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    found = measure(find(["ece(bins=5)", "ece(1)"]), predictions(np.log(p), [0, 1, 0, 0])).values
    assert found["ece(bins=5)"] == pytest.approx(0.4)
    assert found["ece(1)"] == pytest.approx(abs(0.75 - 0.75))  # one bin: mean accuracy against mean confidence


def test_every_executor_records_what_scikit_learn_computes() -> None:
    names = ["f1", "balanced_accuracy", "auroc", "nll", "brier", "precision", "recall", "topk(2)"]

    def own(y_true: Any, y_proba: Any) -> float:
        seen.append((y_true, y_proba))
        return float(sk.roc_auc_score(y_true, y_proba, multi_class="ovr"))

    for executor in (Loop(), Stack(2)):
        seen: list[tuple[Any, Any]] = []
        local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.1))
        data = replace(federation(), client_test=None)  # only the global model is tested, last
        simulation = make_simulation(
            data,
            [network("group")],
            FedAvg(),
            rounds=2,
            local=local,
            metrics=find([*names, own]),
            dtype=torch.float64,
            executor=executor,
        )
        finished = rounds.run(simulation)
        row = finished.rows[-1]
        y, p = seen[-1]
        found, predicted = row["metrics"], p.argmax(1)
        expected = {
            "f1": sk.f1_score(y, predicted, average="macro", zero_division=0),
            "balanced_accuracy": sk.balanced_accuracy_score(y, predicted),
            "auroc": found["own"],
            "nll": sk.log_loss(y, p),
            "brier": sk.brier_score_loss(y, p),
            "precision": sk.precision_score(y, predicted, average="macro", zero_division=0),
            "recall": sk.recall_score(y, predicted, average="macro", zero_division=0),
            "topk(2)": sk.top_k_accuracy_score(y, p, k=2),
        }
        assert {name: found[name] for name in names} == pytest.approx(expected, abs=1e-6)
        assert row["accuracy"] == pytest.approx(100 * sk.accuracy_score(y, predicted))
        assert row["test_loss"] == pytest.approx(sk.log_loss(y, p), abs=1e-6)
        assert finished.confusion == sk.confusion_matrix(y, predicted, labels=range(p.shape[1])).tolist()


# -- users' own ---------------------------------------------------------------------------------------
def test_functions_of_scikit_learn_are_metrics() -> None:
    y, predicted = [0, 1, 2, 2, 1], [0, 2, 2, 2, 1]
    given: list[Any] = [partial(sk.f1_score, average="macro"), sk.zero_one_loss, sk.cohen_kappa_score]
    found = measure(find(given[:2]), of_pairs(y, predicted, 3)).values
    assert list(found) == ["f1_score(average='macro')", "zero_one_loss"]
    assert found["zero_one_loss"] == pytest.approx(0.2)
    with pytest.raises(BadInput, match=r"cohen_kappa_score takes \(y1, y2.*name its arguments after what it needs"):
        find(given[2:])


def test_metrics_are_recorded_in_evaluated_rounds() -> None:
    def samples(confusion: Any) -> float:
        return float(confusion.sum())

    result = run(federation(), network("group"), rounds=3, evaluate_every=2, metrics=["f1", samples], executor="loop")
    assert ["metrics" in row for row in result.rows] == [False, True, True]
    assert result.metrics == result.rows[-1]["metrics"]
    assert result.metrics["samples"] == 20.0
    assert "metrics" not in run(federation(), network("group"), rounds=1, executor="loop").rows[0]


def test_wrong_metrics_are_named_before_training(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def broken(confusion): return confusion[99]\nclass Made: ...\n")
    for asked, message in (
        ("f11", "unknown metric 'f11': did you mean 'f1'"),
        ("f2", "unknown metric 'f2': did you mean 'f1'"),  # r2 is as similar
        ("accuracy", "every run records accuracy already: leave it out"),
        ("own.py:Made", r"own\.py:Made is the class Made, no metric"),
        ("ece(bins=0)", r"ece\(bins=0\): bins: 0 is out of range, it must be at least 1"),
        ("f1(average=mean)", "'mean' is not one of macro, weighted, micro"),
        ("balanced_accuracy(3)", "1 values are too many, balanced_accuracy takes no values"),
    ):
        with pytest.raises(BadInput, match=message):
            find([asked], [tmp_path])
    with pytest.raises(BadInput, match=r"metric own\.py:broken: the function raised IndexError"):
        check(find(["own.py:broken"], [tmp_path]), 2)
    assert {name for objective in OBJECTIVES for name in names(objective)} == set(METRICS)
    for objective, classes in (
        ("multiclass", 2),
        ("multiclass", 3),
        ("binary", 2),
        ("multilabel", 3),
        ("regression", 1),
    ):
        check(find(names(objective), objective=objective), classes, objective)


# -- no value -----------------------------------------------------------------------------------------
def note(name: Any, test: Predictions) -> str:
    (metric,) = find([name])
    found = measure(find([name]), test)
    assert math.isnan(found.values[metric])
    return found.notes[metric]


def test_what_has_no_value_is_nan_with_a_note() -> None:
    def fails_later(confusion: Any) -> float:
        raise KeyError("gone")

    def says_why(confusion: Any) -> float:
        raise Undefined("only on Sundays")

    one_class = predictions([[2.0, 1.0], [0.0, 1.0]], [0, 0])
    assert note("auroc", one_class) == "class 1 has no test samples"
    assert note("topk", one_class) == "there are only 2 classes, all of them are among the first 5"
    assert note("cohen_kappa", of_pairs([0, 0], [0, 0], 2)) == "all labels and predictions are of one class"
    assert note(fails_later, one_class) == "metric fails_later: the function raised KeyError: 'gone'"
    assert note(says_why, one_class) == "only on Sundays"
    assert note(lambda confusion: math.inf, one_class) == "it returned inf"
    broken = predictions([[math.nan, 1.0], [0.0, 1.0]], [0, 1])
    assert note("nll", broken) == note("auroc", broken) == "some scores are not finite"
    nothing = predictions(np.zeros((0, 2)), np.zeros(0, np.int64))
    assert note("f1", nothing) == note("brier", nothing) == "there are no test samples"


def test_a_metric_that_fails_in_a_later_round_does_not_lose_the_run() -> None:
    calls: list[int] = []

    def flaky(confusion: Any) -> float:
        calls.append(1)
        if len(calls) > 2:
            raise ValueError("enough")
        return 1.0

    data = replace(federation(), client_test=None)
    result = run(data, network("group"), rounds=3, metrics=[flaky, "f1"], executor="loop")
    assert result.rows[0]["metrics"]["flaky"] == 1.0
    assert math.isnan(result.metrics["flaky"])
    assert result.rows[-1]["notes"] == {"flaky": "metric flaky: the function raised ValueError: enough"}
    assert result.metrics["f1"] > 0


# -- clients ------------------------------------------------------------------------------------------
def test_metrics_of_the_clients_accuracies() -> None:
    each = [50.0, None, *[float(60 + k) for k in range(19)]]  # 20 clients with test samples
    found = measure_clients(find(["worst_client", "worst_decile", "client_std", "f1"]), each)
    there = np.array([v for v in each if v is not None]) / 100
    assert found.values == pytest.approx({"worst_client": 0.5, "worst_decile": 0.55, "client_std": there.std()})
    nobody = measure_clients(find(["worst_client"]), None)
    assert nobody.notes == {"worst_client": "no client has its own test samples: set client_test"}


def test_means_over_clients_are_named_and_metrics_are_per_client_too() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(120, 4)).astype("f4"), np.arange(120) % 3
    sites = np.repeat([0, 1], [90, 30])
    made = Federation.from_clients([(x[sites == k], y[sites == k]) for k in (0, 1)], client_test=0.2, test=0.1)
    row = run(made, "mlp", rounds=1, metrics=["f1", "auroc", "worst_client"], executor="stack").rows[-1]
    a, b = row["clients"]
    weights = [len(rows) for rows in made.client_test or []]
    assert row["personal"] == pytest.approx((a + b) / 2)
    assert row["personal_weighted"] == pytest.approx(np.average([a, b], weights=weights))
    assert row["personal_loss"] == pytest.approx(np.mean(row["client_test_loss"]))
    assert row["personal_loss_weighted"] == pytest.approx(np.average(row["client_test_loss"], weights=weights))
    assert row["metrics"]["worst_client"] == pytest.approx(min(a, b) / 100)
    assert row["personal_metrics"]["f1"] == pytest.approx(np.mean(row["client_metrics"]["f1"]))
    losses, sizes = list(row["client_train_loss"].values()), [len(rows) for rows in made.indices]
    assert row["train_loss"] == pytest.approx(np.average(losses, weights=sizes))
    assert row["train_loss_unweighted"] == pytest.approx(np.mean(losses))
