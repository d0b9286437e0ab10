"""Metrics of the global model by name, each computed from the confusion matrix of the global test set.

A metric is a function of one array, `confusion[true class, predicted class]` in numbers of samples, that returns a
number. The built-in ones equal scikit-learn's functions of the same names (`macro_f1` is `f1_score` with macro
averaging), from 0 to 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.component_check import check_function, name_of
from fedhead.core.errors import BadInput, user_code
from fedhead.core.registry import Registry

Confusion = NDArray[np.int64]
Metric = Callable[[Confusion], float]
NO_METRICS: Mapping[str, Metric] = MappingProxyType({})
C = TypeVar("C")


METRICS = Registry[Metric](
    "metric",
    "fedhead.metrics",
    lambda found, name: check_function(found, name, "metric", ["confusion"], "a number"),
)


def metric(name: str) -> Callable[[C], C]:
    """Register a metric under a name.

    Args:
        name: The name, for recipes and records.

    Returns:
        A decorator of functions of the confusion matrix [true class, predicted class].
    """
    return METRICS.decorator(name)


def find(metrics: Iterable[str | Metric], folders: Iterable[str | Path] = ()) -> dict[str, Metric]:
    """Return metrics by the names that records call them by.

    Args:
        metrics: Names, or functions; a function has its own name, with a number behind it if another one has that too.
        folders: Where `file.py:name` is looked for, before the working directory.

    Raises:
        BadInput: If there is no such metric.

    >>> list(find(["accuracy", lambda confusion: 0.0, lambda confusion: 1.0]))
    ['accuracy', 'lambda', 'lambda_2']
    """
    folders, found = list(folders), dict[str, Metric]()
    for given in metrics:
        metric = METRICS.resolve(given, folders)
        name = given if isinstance(given, str) else name_of(given)
        taken = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        found[next(free for free in taken if found.get(free, metric) is metric)] = metric
    return found


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
    with user_code(f"metric {name}"):
        value = function(counts.copy())
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"metric {name} returned {type(value).__name__}: return one number") from error


def check(metrics: Mapping[str, Metric], classes: int) -> None:
    """Call each metric once, for one sample per class that is predicted right.

    Raises:
        BadInput: If a metric raises, or returns no number.
    """
    measure(metrics, np.eye(classes, dtype=np.int64))


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
