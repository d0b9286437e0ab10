"""The metrics of every objective against scikit-learn, from runs on every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

import fedhead as fh
from fedhead.metrics.registry import check, find

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 5)).astype(np.float32)
Y: dict[str, Any] = {
    "binary": (X[:, 0] + RNG.normal(size=120) > 0).astype(int),
    "multilabel": (X[:, :3] + RNG.normal(size=(120, 3)) > 0.5).astype(int),
    "regression": X[:, :2] * [1.0, 5.0] + RNG.normal(size=(120, 2)),
}
NAMES: dict[str, list[str]] = {
    "binary": ["f1(average=binary)", "precision(average=binary)", "f1", "balanced_accuracy", "auroc", "nll", "brier"],
    "multilabel": [
        *(f"{name}(average={average})" for name in ("f1", "precision", "recall") for average in ("macro", "samples")),
        *("f1(micro)", "f1(weighted)", "hamming_loss", "auroc", "auroc(weighted)"),
    ],
    "regression": ["mse", "rmse", "mae", "r2"],
}


def _expected(objective: str, y: Any, scores: Any) -> dict[str, float]:
    if objective == "regression":
        return {
            "mse": sk.mean_squared_error(y, scores),
            "rmse": sk.root_mean_squared_error(y, scores),
            "mae": sk.mean_absolute_error(y, scores),
            "r2": sk.r2_score(y, scores),
        }
    p = 1 / (1 + np.exp(-scores.astype(np.float64)))
    if objective == "binary":
        p, hard = p[:, 0], (scores[:, 0] > 0).astype(int)
        return {
            "f1(average=binary)": sk.f1_score(y, hard),
            "precision(average=binary)": sk.precision_score(y, hard),
            "f1": sk.f1_score(y, hard, average="macro"),
            "balanced_accuracy": sk.balanced_accuracy_score(y, hard),
            "auroc": sk.roc_auc_score(y, p),
            "nll": sk.log_loss(y, p),
            "brier": sk.brier_score_loss(y, p),
        }
    hard = (scores > 0).astype(int)
    found = {
        f"{name}(average={average})": getattr(sk, f"{name}_score")(y, hard, average=average, zero_division=0)
        for name in ("f1", "precision", "recall")
        for average in ("macro", "samples")
    }
    return found | {
        "f1(micro)": sk.f1_score(y, hard, average="micro"),
        "f1(weighted)": sk.f1_score(y, hard, average="weighted"),
        "hamming_loss": sk.hamming_loss(y, hard),
        "auroc": sk.roc_auc_score(y, p, average="macro"),
        "auroc(weighted)": sk.roc_auc_score(y, p, average="weighted"),
    }


@pytest.mark.parametrize("executor", ["loop", "stack"])
@pytest.mark.parametrize("objective", list(Y))
def test_metrics_are_those_of_scikit_learn(objective: str, executor: str) -> None:
    y = Y[objective]
    federation = fh.Federation.from_arrays(
        X[:80], y[:80], clients=3, test=(X[80:], y[80:]), client_test=0.3, objective=objective
    )
    result = fh.run(
        federation,
        "mlp(hidden=[8])",
        rounds=4,
        lr=0.3,
        batch_size=8,
        executor=executor,
        metrics=[*NAMES[objective], "worst_client"],
    )
    scores = result.scores(X[80:])
    expected = _expected(objective, y[80:], scores)
    assert expected.keys() == set(NAMES[objective])
    for name, value in expected.items():
        assert result.metrics[name] == pytest.approx(value, abs=1e-6), name
    assert result.evaluate(X[80:], y[80:], NAMES[objective])["loss"] == pytest.approx(result.test_loss, abs=1e-6)
    row = result.rows[-1]
    if objective == "regression":
        assert result.accuracy is None
        assert row["per_class"] is None
        assert "confusion" not in row
        assert row["clients"] == [None] * 3
        assert result.metrics["worst_client"] == max(row["client_test_loss"])  # the largest error
        np.testing.assert_array_equal(result.predict(X), result.scores(X))
        assert list(result.clients.columns) == ["samples", "loss"]
        assert "test_loss" in repr(result)
    elif objective == "multilabel":
        hard = (scores > 0).astype(int)
        assert result.accuracy == pytest.approx(100 * sk.accuracy_score(y[80:], hard))
        np.testing.assert_allclose(row["per_class"], 100 * sk.recall_score(y[80:], hard, average=None), atol=1e-6)
        np.testing.assert_array_equal(result.predict(X[80:]), hard)
        assert result.metrics["worst_client"] == min(row["clients"]) / 100
        with pytest.raises(fh.BadInput, match="confusion matrix needs classes"):
            result.confusion()
    else:
        assert result.confusion().to_numpy().tolist() == sk.confusion_matrix(y[80:], result.predict(X[80:])).tolist()
        assert scores.shape == (40, 1)
    # the clients' own tests, from the same kind of predictions
    own = federation.client_test
    assert own is not None
    rows = own[0]
    mine = result.evaluate(federation.train.x[rows].numpy(), federation.train.y[rows].numpy(), [NAMES[objective][0]], 0)
    assert row["client_metrics"][NAMES[objective][0]][0] == pytest.approx(mine[NAMES[objective][0]], abs=1e-6)


def test_scikit_learns_functions_and_ones_own_are_metrics() -> None:
    def largest(y_true: Any, y_pred: Any) -> float:
        return float(np.abs(y_true - y_pred).max())

    federation = fh.Federation.from_arrays(X, Y["regression"][:, 0], clients=2, test=0.3, objective="regression")
    result = fh.run(federation, "mlp", rounds=1, metrics=[sk.median_absolute_error, largest])
    assert federation.test is not None
    gap = np.abs(result.predict(federation.test.x) - federation.test.y[:, 0].numpy())
    assert result.predict(X).shape == (120,)
    assert result.metrics["median_absolute_error"] == pytest.approx(np.median(gap), abs=1e-6)
    assert result.metrics["largest"] == pytest.approx(gap.max(), abs=1e-6)
    assert set(fh.run(federation, "mlp", rounds=1).metrics) == {"mae", "r2"}  # where none are asked for


def test_metrics_of_another_objective_are_refused_by_name() -> None:
    for name, objective, message in [
        ("f1", "regression", "metric f1 is not for objective=regression: use one of .*mae"),
        ("mse", "multiclass", "metric mse is not for objective=multiclass: use one of balanced"),
        ("ece", "multilabel", "metric ece is not for objective=multilabel: use one of .*hamming_loss"),
        (lambda y_proba: 0.0, "regression", "needs y_proba, which objective=regression lacks"),
        (lambda confusion: 0.0, "multilabel", "needs confusion, which objective=multilabel lacks"),
    ]:
        with pytest.raises(fh.BadInput, match=message):
            find([name], objective=objective)
    with pytest.raises(fh.BadInput, match="average=binary is for 2 classes, there are 3"):
        check(find(["f1(average=binary)"]), 3)


def test_labels_that_are_all_alike_have_no_auroc_and_the_run_goes_on() -> None:
    y = Y["multilabel"].copy()
    y[80:, 1] = 0
    federation = fh.Federation.from_arrays(X[:80], y[:80], clients=2, test=(X[80:], y[80:]), objective="multilabel")
    result = fh.run(federation, "mlp", rounds=1, metrics=["auroc"])
    assert np.isnan(result.metrics["auroc"])
    assert result.rows[-1]["notes"]["auroc"] == "all test samples have the same value of label 1"


def test_r2_of_a_constant_is_scikit_learns() -> None:
    federation = fh.Federation.from_arrays(
        X, Y["regression"][:, :1], clients=2, test=(X[:5], np.ones(5)), objective="regression"
    )
    result = fh.run(federation, "mlp", rounds=1, metrics=["r2"])
    assert result.metrics["r2"] == sk.r2_score(np.ones(5), result.predict(X[:5])) == 0.0


def test_early_stopping_watches_errors() -> None:
    federation = fh.Federation.from_arrays(X, Y["regression"], clients=2, test=0.2, objective="regression")
    watched = fh.EarlyStopping("mae", patience=1)
    result = fh.run(federation, "mlp", rounds=3, validation=0.2, callbacks=[watched, fh.BestModel("loss")])
    assert result.best_round == len(result.rows) == 3  # errors fall, which is better
    assert result.rows[-1]["validation"]["mae"] < result.rows[0]["validation"]["mae"]
