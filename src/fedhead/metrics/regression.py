"""Regression metrics, equal to scikit-learn's functions, averaged over targets."""

from __future__ import annotations

from torch import Tensor

from fedhead.metrics.predictions import Predictions
from fedhead.metrics.registry import Undefined, metric

OBJECTIVES = ("regression",)


@metric("mse", "min", OBJECTIVES)
def mse(predictions: Predictions) -> float:
    """Return the mean squared error."""
    return float(_errors(predictions).square().mean())


@metric("rmse", "min", OBJECTIVES)
def rmse(predictions: Predictions) -> float:
    """Return the root mean squared error, averaged over targets."""
    return float(_errors(predictions).square().mean(0).sqrt().mean())


@metric("mae", "min", OBJECTIVES)
def mae(predictions: Predictions) -> float:
    """Return the mean absolute error."""
    return float(_errors(predictions).abs().mean())


@metric("r2", "max", OBJECTIVES)
def r2(predictions: Predictions) -> float:
    """Return the coefficient of determination R², at most 1; 0 for predicting the mean."""
    y = predictions.y.double()
    if len(y) < 2:
        raise Undefined("the variance of one sample is not defined")
    residual, total = _errors(predictions).square().sum(0), (y - y.mean(0)).square().sum(0)
    # like scikit-learn, a constant target scores 1 if all predictions are exact, else 0
    scores = (1 - residual / total.where(total > 0, 1)).where(total > 0, (residual == 0).double())
    return float(scores.mean())


def _errors(predictions: Predictions) -> Tensor:
    return predictions.predicted.double() - predictions.y.double()
