"""Multilabel metrics, equal to scikit-learn's functions; values from 0 to 1."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedhead.metrics.classification import average_area, roc_areas
from fedhead.metrics.predictions import Predictions
from fedhead.metrics.registry import Undefined, metric, variant

Average = Literal["macro", "weighted", "micro", "samples"]
Labels = NDArray[np.int64]  # 0 and 1, [N, L]
TASK = "multilabel"


@metric("hamming_loss", "min", (TASK,))
def hamming_loss(y_true: Labels, y_pred: Labels) -> float:
    """Return the share of wrong labels, which is 1 minus the mean accuracy over labels."""
    return float((y_true != y_pred).mean())


@variant("precision", TASK, "max")
def precision(y_true: Labels, y_pred: Labels, average: Average = "macro") -> float:
    """Return the precision, averaged over labels as in scikit-learn."""
    return _averaged(y_true, y_pred, average, predicted=1.0, positive=0.0)


@variant("recall", TASK, "max")
def recall(y_true: Labels, y_pred: Labels, average: Average = "macro") -> float:
    """Return the recall, averaged over labels as in scikit-learn."""
    return _averaged(y_true, y_pred, average, predicted=0.0, positive=1.0)


@variant("f1", TASK, "max")
def f1(y_true: Labels, y_pred: Labels, average: Average = "macro") -> float:
    """Return the F1 score (harmonic mean of precision and recall), averaged over labels as in scikit-learn."""
    return _averaged(y_true, y_pred, average, predicted=0.5, positive=0.5)


def _averaged(y_true: Labels, y_pred: Labels, average: Average, predicted: float, positive: float) -> float:
    """Average TP / (predicted · (TP + FP) + positive · (TP + FN)) over labels or samples; 0/0 is 0."""
    axis = 1 if average == "samples" else 0
    hits, true = (y_true * y_pred).sum(axis=axis), y_true.sum(axis=axis)
    possible = predicted * y_pred.sum(axis=axis) + positive * true
    if average == "micro":
        return float(hits.sum() / possible.sum()) if possible.sum() else 0.0
    ratios = np.divide(hits, possible, out=np.zeros(len(hits)), where=possible > 0)
    if average == "weighted":
        return float(np.average(ratios, weights=true)) if true.sum() else 0.0
    return float(ratios.mean())


@variant("auroc", TASK, "max")
def auroc(predictions: Predictions, average: Literal["macro", "weighted"] = "macro") -> float:
    """Return the area under the ROC curve, averaged over labels."""
    positive = (predictions.y > 0).T
    counts = positive.sum(-1)
    for label, count in enumerate(counts.tolist()):
        if count in (0, len(predictions)):
            raise Undefined(f"all test samples have the same value of label {label}")
    return average_area(roc_areas(predictions.probabilities.T.contiguous(), positive), counts, average)
