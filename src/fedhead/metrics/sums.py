"""Metrics as sums over samples: sites send sums, and the server computes the metrics of all sites' samples."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhead.core.training.objectives import OBJECTIVES
from fedhead.core.tree.tree import Tree
from fedhead.metrics import classification, multilabel, regression
from fedhead.metrics.predictions import Predictions
from fedhead.metrics.registry import Metric, MetricFunction, Undefined

T = TypeVar("T")
# Metrics that are means over samples: a client's sum is its value times its number of samples.
_MEANS: set[MetricFunction] = {
    *(classification.nll, classification.brier, classification.topk),
    *(multilabel.hamming_loss, regression.mse, regression.mae),
}
# Other metrics of scores: a client's sums, and the metric of the total and the number of samples.
_FROM_SCORES: dict[MetricFunction, tuple[Callable[..., Tensor], Callable[..., float]]] = {
    classification.ece: (classification.ece_gaps, classification.ece_of_gaps),
    classification.auroc: (classification.roc_histograms, classification.auroc_of_histograms),
}
_CONFUSION, _SAMPLES = "confusion", "samples"


def summable(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Return the metrics that can be computed from sums over samples."""
    return {
        name: metric
        for name, metric in metrics.items()
        if metric.inputs == (_CONFUSION,) or metric.function in _MEANS or metric.function in _FROM_SCORES
    }


def small_classes(predictions: Predictions, minimum: int) -> list[int]:
    """Return the classes with some samples, but fewer than `minimum`; none if the objective has no classes."""
    if not OBJECTIVES[predictions.objective].has_classes:
        return []
    counts = predictions.y.bincount(minlength=predictions.classes)
    return ((counts > 0) & (counts < minimum)).nonzero().flatten().tolist()


def metric_sums(predictions: Predictions, metrics: Mapping[str, Metric], min_class_count: int = 1) -> Tree:
    """Return the sums of a client's samples for these metrics, which must be `summable`.

    Args:
        predictions: Predictions of the client's samples, with scores.
        metrics: Metrics by name.
        min_class_count: Classes with fewer samples are left out.
    """
    if small := small_classes(predictions, min_class_count):
        kept = ~torch.isin(predictions.y, torch.tensor(small, device=predictions.y.device))
        scores = None if predictions.scores is None else predictions.scores[kept]
        columns = {name: getattr(predictions, name)[kept] for name in ("y", "predicted", "losses")}
        predictions = replace(predictions, scores=scores, **columns)
    tree = Tree({_SAMPLES: torch.tensor(len(predictions))})
    for place, metric in enumerate(metrics.values()):
        if metric.inputs == (_CONFUSION,):
            tree[_CONFUSION] = torch.from_numpy(predictions.confusion)
        elif metric.function in _FROM_SCORES:
            tree[str(place)] = _call(_FROM_SCORES[metric.function][0], metric, predictions)
        else:
            tree[str(place)] = torch.tensor(_sum(metric, predictions), dtype=torch.float64)
    return tree


def _sum(metric: Metric, predictions: Predictions) -> float:
    try:
        value = metric(lambda name: predictions if name == "predictions" else getattr(predictions, name))
    except Undefined:
        return math.nan
    return float(value) * len(predictions) if len(predictions) else 0.0


def metrics_of_sums(total: Tree, metrics: Mapping[str, Metric]) -> dict[str, float]:
    """Return the metrics of the samples of all clients; NaN for one that is undefined.

    Args:
        total: Sum of the clients' `metric_sums`.
        metrics: Metrics by name, as given to `metric_sums`.
    """
    samples, values = int(total[_SAMPLES]), dict[str, float]()
    for place, (name, metric) in enumerate(metrics.items()):
        try:
            values[name] = _value(metric, total, place, samples) if samples else math.nan
        except Undefined:
            values[name] = math.nan
    return values


def _value(metric: Metric, total: Tree, place: int, samples: int) -> float:
    if metric.inputs == (_CONFUSION,):
        confusion: Any = np.asarray(total[_CONFUSION])
        return metric.function(confusion, **metric.arguments)
    if metric.function in _FROM_SCORES:
        return _call(_FROM_SCORES[metric.function][1], metric, total[str(place)], samples)
    return float(total[str(place)]) / samples


def _call(function: Callable[..., T], metric: Metric, *values: Any) -> T:
    """Call a function with those of the metric's arguments that it has."""
    known = inspect.signature(function).parameters
    return function(*values, **{name: value for name, value in metric.arguments.items() if name in known})
