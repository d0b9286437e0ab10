"""Metrics of the global model equal scikit-learn's, are recorded per evaluated round, and may be a user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score
from small import federation, network

from fedhead import run
from fedhead.core.errors import BadInput
from fedhead.engine.classification_metrics import confusion, find, measure

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60)


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")  # scikit-learn leaves those out, as we do
@pytest.mark.filterwarnings("ignore:A single label was found")
@given(PAIRS)
def test_metrics_equal_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    y, predicted = (np.array(side) for side in zip(*pairs, strict=True))
    counts = confusion(torch.from_numpy(y), torch.from_numpy(predicted), classes=6)  # the last class has no samples
    found = measure(find(["accuracy", "balanced_accuracy", "macro_f1"]), counts)
    assert found["accuracy"] == pytest.approx(accuracy_score(y, predicted))
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(y, predicted, average="macro", zero_division=0))


def test_metrics_are_recorded_in_evaluated_rounds() -> None:
    def samples(confusion: Any) -> float:
        return float(confusion.sum())

    result = run(
        federation(), network("group"), rounds=3, evaluate_every=2, metrics=["macro_f1", samples], executor="loop"
    )
    assert ["metrics" in row for row in result.rows] == [False, True, True]
    assert result.metrics == result.rows[-1]["metrics"]
    assert result.metrics["samples"] == 20.0
    assert "metrics" not in run(federation(), network("group"), rounds=1, executor="loop").rows[0]


def test_wrong_metrics_are_named(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def broken(confusion): return confusion[99]\nclass Made: ...\n")
    with pytest.raises(BadInput, match="unknown metric 'macrof1': did you mean 'macro_f1'"):
        find(["macrof1"])
    with pytest.raises(BadInput, match=r"own\.py:Made is the class Made, no metric"):
        find(["own.py:Made"], [tmp_path])
    with pytest.raises(BadInput, match=r"metric own\.py:broken: the function raised IndexError"):
        measure(find(["own.py:broken"], [tmp_path]), np.eye(2, dtype=np.int64))
