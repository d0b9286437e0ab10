"""Classification metrics, equal to scikit-learn's functions; values from 0 to 1 unless stated otherwise.

Metrics of counts use the confusion matrix. Metrics of scores are computed in double precision on the scores' device.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.errors import BadInput
from fedhead.metrics.predictions import Confusion, Predictions
from fedhead.metrics.registry import CLASSIFICATION, Undefined, metric

Average = Literal["macro", "weighted", "micro", "binary"]
Floats = NDArray[np.float64]
ROC_BINS = 1024  # most bins of histograms, since finer ones would show single samples of a site


# -- from counts --------------------------------------------------------------------------------------
@metric("balanced_accuracy", "max", CLASSIFICATION)
def balanced_accuracy(confusion: Confusion) -> float:
    """Return the mean recall over the classes that have test samples."""
    totals = confusion.sum(axis=1)
    return float(np.mean(np.diag(confusion)[totals > 0] / totals[totals > 0]))


@metric("precision", "max", CLASSIFICATION)
def precision(confusion: Confusion, average: Average = "macro") -> float:
    """Return the precision, averaged over classes as in scikit-learn.

    Args:
        confusion: Confusion matrix.
        average: Weights of the classes: equal (macro), by samples (weighted), ratio of the sums (micro), or only the
            second of two classes (binary).
    """
    return _averaged(confusion, confusion.sum(axis=0), average)


@metric("recall", "max", CLASSIFICATION)
def recall(confusion: Confusion, average: Average = "macro") -> float:
    """Return the recall, averaged over classes as in scikit-learn.

    Args:
        confusion: Confusion matrix.
        average: Weights of the classes: equal (macro), by samples (weighted), ratio of the sums (micro), or only the
            second of two classes (binary).
    """
    return _averaged(confusion, confusion.sum(axis=1), average)


@metric("f1", "max", CLASSIFICATION)
def f1(confusion: Confusion, average: Average = "macro") -> float:
    """Return the F1 score (harmonic mean of precision and recall), averaged over classes as in scikit-learn.

    Args:
        confusion: Confusion matrix.
        average: Weights of the classes: equal (macro), by samples (weighted), ratio of the sums (micro), or only the
            second of two classes (binary).
    """
    return _averaged(confusion, (confusion.sum(axis=0) + confusion.sum(axis=1)) / 2, average)


def _averaged(confusion: Confusion, possible: Floats | Confusion, average: Average) -> float:
    """Average hits / possible over the classes that occur among labels or predictions; 0 / 0 counts as 0.

    macro: equal class weights; weighted: weights by samples; micro: ratio of the sums; binary: only the second of two
    classes.
    """
    hits = np.diag(confusion)
    if average == "binary":
        if len(hits) != 2:
            raise BadInput(f"average=binary is for 2 classes, there are {len(hits)}")
        return float(hits[1] / possible[1]) if possible[1] else 0.0
    if average == "micro":
        return float(hits.sum() / possible.sum())
    present = (confusion.sum(axis=0) + confusion.sum(axis=1)) > 0
    ratios = np.divide(hits, possible, out=np.zeros(len(hits)), where=possible > 0)[present]
    return float(np.average(ratios, weights=confusion.sum(axis=1)[present] if average == "weighted" else None))


@metric("matthews_corrcoef", "max", CLASSIFICATION)
def matthews_corrcoef(confusion: Confusion) -> float:
    """Return the correlation of labels and predictions, from −1 to 1; 0 if either is constant (Gorodkin, 2004)."""
    true, predicted, total = confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum()
    covariance = float(np.trace(confusion) * total - true @ predicted)
    variances = float(total**2 - true @ true) * float(total**2 - predicted @ predicted)
    return covariance / variances**0.5 if variances > 0 else 0.0


@metric("cohen_kappa", "max", CLASSIFICATION)
def cohen_kappa(confusion: Confusion) -> float:
    """Return the chance-corrected agreement of labels and predictions, at most 1 (Cohen, 1960)."""
    total = confusion.sum()
    chance = float(confusion.sum(axis=1) @ confusion.sum(axis=0)) / float(total) ** 2
    if chance == 1:
        raise Undefined("all labels and predictions are of one class")
    return (float(np.trace(confusion) / total) - chance) / (1 - chance)


# -- from scores --------------------------------------------------------------------------------------
@metric("topk", "max", CLASSIFICATION)
def topk(predictions: Predictions, k: Annotated[int, AtLeast(1)] = 5) -> float:
    """Return the share of samples whose class is among the k highest scores.

    Args:
        predictions: Predictions.
        k: Number of highest scores.
    """
    if k >= predictions.classes:
        raise Undefined(f"there are only {predictions.classes} classes, all of them are among the first {k}")
    scores, y = predictions.scores, predictions.y.unsqueeze(-1)
    assert scores is not None, "kept if a metric needs them"
    target = scores.gather(-1, y)
    classes = torch.arange(predictions.classes, device=scores.device)
    # like scikit-learn, break ties in favour of later classes
    before = (scores > target) | ((scores == target) & (classes > y))
    return float((before.sum(-1) < k).double().mean())


@metric("nll", "min", CLASSIFICATION)
def nll(predictions: Predictions) -> float:
    """Return the mean negative log-likelihood of the true class (scikit-learn's `log_loss`); at least 0.

    Probabilities below 2.2e-16 count as that, as in scikit-learn.
    """
    return float(predictions.losses.clamp_max(-math.log(torch.finfo(torch.float64).eps)).mean())


@metric("brier", "min", CLASSIFICATION)
def brier(predictions: Predictions) -> float:
    """Return the Brier score: mean squared error of the probabilities, from 0 to 2; halved for two classes."""
    target = torch.nn.functional.one_hot(predictions.y, predictions.classes)
    distance = (predictions.probabilities - target).square().sum(-1).mean()
    return float(distance) / (2 if predictions.classes == 2 else 1)


@metric("ece", "min", CLASSIFICATION)
def ece(predictions: Predictions, bins: Annotated[int, AtLeast(1), AtMost(ROC_BINS)] = 15) -> float:
    """Return the expected calibration error with equal-width confidence bins (Guo et al., 2017, Eq. 3).

    Args:
        predictions: Predictions.
        bins: Number of bins.
    """
    return ece_of_gaps(ece_gaps(predictions, bins), len(predictions))


def ece_gaps(predictions: Predictions, bins: int = 15) -> Tensor:
    """Return the sum of correctness minus confidence in each bin."""
    confidence = predictions.probabilities.max(-1).values
    correct = (predictions.predicted == predictions.y).double()
    index = (torch.ceil(confidence * bins) - 1).clamp(0, bins - 1).long()  # bin b is (b / bins, (b + 1) / bins]
    return torch.zeros(bins, dtype=torch.float64, device=confidence.device).index_add_(0, index, correct - confidence)


def ece_of_gaps(gaps: Tensor, samples: int) -> float:
    """Return the expected calibration error of summed `ece_gaps`."""
    return float(gaps.abs().sum() / samples)


@metric("auroc", "max", CLASSIFICATION)
def auroc(
    predictions: Predictions,
    average: Literal["macro", "weighted"] = "macro",
    bins: Annotated[int, AtLeast(2), AtMost(ROC_BINS)] | None = None,
) -> float:
    """Return the area under the ROC curve: of the second of two classes, or the one-vs-rest average.

    Args:
        predictions: Predictions.
        average: Weights of the classes: equal (macro), or by samples (weighted).
        bins: Number of equal-width bins to which probabilities are rounded; None: not rounded, at sites `ROC_BINS`.
    """
    if bins is not None:
        return auroc_of_histograms(roc_histograms(predictions, bins), len(predictions), average)
    present = torch.bincount(predictions.y, minlength=predictions.classes)
    _check_present(present)
    p = predictions.probabilities.T.contiguous()
    if predictions.classes == 2:
        return float(roc_areas(p[1:], predictions.y.unsqueeze(0) == 1))
    positive = predictions.y == torch.arange(predictions.classes, device=p.device).unsqueeze(-1)
    return average_area(roc_areas(p, positive), present, average)


def _check_present(present: Tensor) -> None:
    absent = (present == 0).nonzero().flatten().tolist()
    if absent:
        text = ", ".join(map(str, absent[:4])) + (" …" if len(absent) > 4 else "")
        raise Undefined(f"class {text} has no test samples" if len(absent) == 1 else f"classes {text} have no samples")


def roc_histograms(predictions: Predictions, bins: int | None = None) -> Tensor:
    """Return histograms of each class's probability, over samples of other classes and of the class, [2, C, bins]."""
    count, bins = predictions.classes, bins or ROC_BINS
    classes = torch.arange(count, device=predictions.y.device)
    place = classes * bins + (predictions.probabilities * bins).long().clamp_max(bins - 1)
    place += (predictions.y.unsqueeze(-1) == classes) * count * bins
    return place.flatten().bincount(minlength=2 * count * bins).reshape(2, count, bins)


def auroc_of_histograms(histograms: Tensor, samples: int, average: str = "macro") -> float:
    """Return the area under the ROC curve of summed `roc_histograms`; a pair of samples in one bin counts as a tie."""
    negative, positive = histograms.double()
    weights = positive.sum(-1)
    _check_present(weights)
    if len(weights) == 2:  # as in scikit-learn: of the second class
        negative, positive, weights = negative[1:], positive[1:], weights[1:]
    lower = negative.cumsum(-1) - negative / 2
    areas = (positive * lower).sum(-1) / (weights * negative.sum(-1))
    return average_area(areas, weights, average)


def average_area(areas: Tensor, counts: Tensor, average: str) -> float:
    """Return the mean area under ROC curves: equal weights (macro), or weights by samples (weighted)."""
    weights = counts.double() if average == "weighted" else torch.ones_like(areas)
    return float((areas * weights).sum() / weights.sum())


def roc_areas(scores: Tensor, positive: Tensor) -> Tensor:
    """Return the area under each row's ROC curve, from the ranks of positive samples; ties share a rank."""
    ordered = scores.sort(-1).values
    ranks = (torch.searchsorted(ordered, scores) + torch.searchsorted(ordered, scores, right=True) + 1).double() / 2
    count = positive.sum(-1).double()
    return ((ranks * positive).sum(-1) - count * (count + 1) / 2) / (count * (scores.shape[-1] - count))
