"""Metrics of the global model by name, each computed from the confusion matrix of the global test set.

A metric is a function of one array, `confusion[true class, predicted class]` in numbers of samples, that returns a
number. The built-in ones equal scikit-learn's functions of the same names (`macro_f1` is `f1_score` with macro
averaging), from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.errors import BadInput, FedheadError
from fedhead.core.parameters import parameters
from fedhead.core.registry import Registry

Confusion = NDArray[np.int64]
Metric = Callable[[Confusion], float]
NO_METRICS: Mapping[str, Metric] = MappingProxyType({})
C = TypeVar("C")


def _checked(found: Any, name: str) -> Metric:
    if isinstance(found, type) or not callable(found):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise BadInput(f"{name} is {kind}, no metric: name a function (confusion) that returns a number")
    if len(parameters(found)) != 1:
        raise BadInput(f"{name} takes ({', '.join(parameters(found))}), a metric is called with (confusion)")
    return found  # type: ignore[no-any-return]  # the user's function is untyped


METRICS = Registry[Metric]("metric", "fedhead.metrics", _checked)


def metric(name: str) -> Callable[[C], C]:
    """Register a metric under a name: a function of the confusion matrix [true class, predicted class]."""
    return METRICS.decorator(name)


def find(names: Iterable[str], folders: Iterable[str | Path] = ()) -> dict[str, Metric]:
    """Return the metrics of these names; raises `BadInput` for one that there is not."""
    folders = list(folders)
    return {name: METRICS.find(name, folders) for name in names}


def confusion(y: Tensor, predicted: Tensor, classes: int) -> Confusion:
    """Count samples by true and predicted class, [classes, classes].

    >>> import torch
    >>> confusion(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    places = (y.to(predicted.device) * classes + predicted).bincount(minlength=classes * classes)
    return np.asarray(places.cpu().numpy().reshape(classes, classes), np.int64)


def measure(metrics: Mapping[str, Metric], counts: Confusion) -> dict[str, float]:
    """Compute metrics of one confusion matrix; what a user's own metric does wrong is a `BadInput` that names it."""
    return {name: _number(name, function, counts) for name, function in metrics.items()}


def _number(name: str, function: Metric, counts: Confusion) -> float:
    try:
        return float(function(counts.copy()))
    except FedheadError:
        raise
    except Exception as error:  # the user's own code may raise anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"metric {name}: the function raised {reason}") from error


@metric("accuracy")
def accuracy(confusion: Confusion) -> float:
    """The share of samples whose class is predicted."""
    return float(np.trace(confusion) / confusion.sum())


@metric("balanced_accuracy")
def balanced_accuracy(confusion: Confusion) -> float:
    """The mean of the classes' recalls, over the classes that have test samples."""
    held = confusion.sum(axis=1)
    return float(np.mean(np.diag(confusion)[held > 0] / held[held > 0]))


@metric("macro_f1")
def macro_f1(confusion: Confusion) -> float:
    """The mean of the classes' F1 scores, over the classes that occur among labels or predictions."""
    both = confusion.sum(axis=1) + confusion.sum(axis=0)
    return float(np.mean(2 * np.diag(confusion)[both > 0] / both[both > 0]))
