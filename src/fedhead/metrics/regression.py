"""Metrics of predicted numbers; each equals scikit-learn's function, which takes the mean over several numbers."""

from __future__ import annotations

from torch import Tensor

from fedhead.metrics.predictions import Predictions
from fedhead.metrics.registry import Undefined, metric

OBJECTIVES = ("regression",)


@metric("mse", "min", OBJECTIVES)
def mse(predictions: Predictions) -> float:
    """The mean squared error."""
    return float(_errors(predictions).square().mean())


@metric("rmse", "min", OBJECTIVES)
def rmse(predictions: Predictions) -> float:
    """The square root of the mean squared error, of each number before the mean over the numbers."""
    return float(_errors(predictions).square().mean(0).sqrt().mean())


@metric("mae", "min", OBJECTIVES)
def mae(predictions: Predictions) -> float:
    """The mean absolute error."""
    return float(_errors(predictions).abs().mean())


@metric("r2", "max", OBJECTIVES)
def r2(predictions: Predictions) -> float:
    """The share of the variance that is explained, 1 at most; 0 for the mean as the prediction."""
    y = predictions.y.double()
    if len(y) < 2:
        raise Undefined("the variance of one sample is not defined")
    left, total = _errors(predictions).square().sum(0), (y - y.mean(0)).square().sum(0)
    # as scikit-learn: a constant target is explained if all predictions are right, and not at all otherwise
    each = (1 - left / total.where(total > 0, 1)).where(total > 0, (left == 0).double())
    return float(each.mean())


def _errors(predictions: Predictions) -> Tensor:
    return predictions.predicted.double() - predictions.y.double()
