"""Metrics of samples with any number of labels; each equals scikit-learn's function, from 0 to 1."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedhead.metrics.classification import roc_areas
from fedhead.metrics.predictions import Predictions
from fedhead.metrics.registry import Undefined, metric, variant

Average = Literal["macro", "weighted", "micro", "samples"]
Labels = NDArray[np.int64]  # 0 and 1, [N, L]
TASK = "multilabel"


@variant("accuracy", TASK, "max")
def subset_accuracy(y_true: Labels, y_pred: Labels) -> float:
    """The share of samples of which all labels are right."""
    return float((y_true == y_pred).all(axis=1).mean())


@metric("hamming_loss", "min", (TASK,))
def hamming_loss(y_true: Labels, y_pred: Labels) -> float:
    """The share of labels that are wrong; 1 minus it is the mean over the labels of their accuracies."""
    return float((y_true != y_pred).mean())


@variant("precision", TASK, "max")
def precision(y_true: Labels, y_pred: Labels, average: Average = "macro") -> float:
    """The share of a label's predictions that are right, averaged over the labels as scikit-learn does."""
    return _averaged(y_true, y_pred, average, predicted=1.0, held=0.0)


@variant("recall", TASK, "max")
def recall(y_true: Labels, y_pred: Labels, average: Average = "macro") -> float:
    """The share of a label's samples that are found, averaged over the labels as scikit-learn does."""
    return _averaged(y_true, y_pred, average, predicted=0.0, held=1.0)


@variant("f1", TASK, "max")
def f1(y_true: Labels, y_pred: Labels, average: Average = "macro") -> float:
    """The harmonic mean of precision and recall of a label, averaged over the labels as scikit-learn does."""
    return _averaged(y_true, y_pred, average, predicted=0.5, held=0.5)


def _averaged(y_true: Labels, y_pred: Labels, average: Average, predicted: float, held: float) -> float:
    """Average hits / possible over labels, or over samples; 0 / 0 counts as 0."""
    axis = 1 if average == "samples" else 0
    hits, true = (y_true * y_pred).sum(axis=axis), y_true.sum(axis=axis)
    possible = predicted * y_pred.sum(axis=axis) + held * true
    if average == "micro":
        return float(hits.sum() / possible.sum()) if possible.sum() else 0.0
    each = np.divide(hits, possible, out=np.zeros(len(hits)), where=possible > 0)
    if average == "weighted":
        return float(np.average(each, weights=true)) if true.sum() else 0.0
    return float(each.mean())


@variant("auroc", TASK, "max")
def auroc(predictions: Predictions, average: Literal["macro", "weighted"] = "macro") -> float:
    """The area under the ROC curve of each label, averaged over the labels."""
    positive = (predictions.y > 0).T
    held = positive.sum(-1)
    for label, count in enumerate(held.tolist()):
        if count in (0, len(predictions)):
            raise Undefined(f"all test samples are alike in label {label}")
    found = roc_areas(predictions.probabilities.T.contiguous(), positive)
    weights = held.double() if average == "weighted" else held.new_ones(len(held)).double()
    return float((found * weights).sum() / weights.sum())
