"""Registry of metrics, and their evaluation.

A metric is a function. The names of its arguments select its inputs:

- `confusion`: confusion matrix, [true class, predicted class];
- `y_true`, `y_pred`, `y_proba`, `y_score`: arrays named as in scikit-learn, so its functions can be used as metrics;
- `predictions`: all of these and the tensors on the device (`fedhead.metrics.predictions.Predictions`);
- `clients`: accuracy of each client on its own test samples, from 0 to 1; mean squared error for regression.

Other parameters need default values, which recipes override as in `ece(bins=10)`. A metric that is undefined for some
samples raises `Undefined`. The record then holds NaN and a note with the reason, and the run continues.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from fedhead.core.components.component_check import check_function, name_of
from fedhead.core.components.parameters import parameters, required
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import BadInput, FedheadError, require, user_code
from fedhead.core.training.objectives import OBJECTIVES
from fedhead.metrics.predictions import Predictions, of_outputs

C = TypeVar("C")
MetricFunction = Callable[..., float]
Better = Literal["max", "min"]
OF_SAMPLES = ("confusion", "y_true", "y_pred", "y_proba", "y_score", "predictions")  # attributes of Predictions
WITHOUT_SCORES = {"confusion", "y_true", "y_pred"}
CLASSIFICATION = ("multiclass", "binary")  # objectives that predict classes
DEFAULTS = {"multilabel": ("f1",), "regression": ("mae", "r2")}  # if a run names no metrics
_LACKS = {"multilabel": {"confusion"}, "regression": {"confusion", "y_proba", "y_score"}}  # unavailable inputs
RECORDED = ("accuracy", "accuracy_mean", "personal", "train_loss", "test_loss", "personal_loss")  # in every run
_variants: dict[tuple[str, str], MetricFunction] = {}  # by name and objective


class Undefined(FedheadError):
    """Error for a metric that is undefined for these samples; the message is the reason."""


@dataclass(frozen=True)
class Metric:
    """Metric with bound parameters.

    Attributes:
        function: Metric function.
        inputs: Names of its inputs.
        arguments: Values of its parameters.
        better: Whether high or low values are good; None: unknown.
        objectives: Supported objectives; None: any.
    """

    function: MetricFunction
    inputs: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    better: Better | None = None
    objectives: tuple[str, ...] | None = None

    def __call__(self, lookup: Callable[[str], Any]) -> Any:
        """Call the function; `lookup` maps an input's name to its value."""
        return self.function(**{name: lookup(name) for name in self.inputs}, **self.arguments)

    @property
    def of_clients(self) -> bool:
        """True if the metric is computed from the clients' accuracies."""
        return "clients" in self.inputs

    @property
    def needs_scores(self) -> bool:
        """True if the metric needs scores, not only labels and predictions."""
        return not self.of_clients and not WITHOUT_SCORES.issuperset(self.inputs)


NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


def _checked(component: Any, name: str) -> MetricFunction:
    """Return a metric function; raise `BadInput` if it has unknown arguments."""
    function = check_function(component, name, "metric", [], "a number", open_ended=True)
    known = ", ".join(OF_SAMPLES)
    names = ", ".join(required(function))
    require(_inputs(function), f"{name} takes ({names}): name its arguments after what it needs: {known} or clients")
    return function


METRICS = Registry[MetricFunction](
    "metric",
    "fedhead.metrics",
    _checked,
    home=[
        "fedhead.metrics.classification",
        "fedhead.metrics.clients",
        "fedhead.metrics.multilabel",
        "fedhead.metrics.regression",
    ],
)
"""Registry of metrics."""


def metric(name: str, better: Better | None = None, objectives: Sequence[str] | None = None) -> Callable[[C], C]:
    """Register a metric under a name.

    Args:
        name: Name in recipes and records.
        better: Whether high ("max") or low ("min") values are good; required by callbacks that watch the metric.
        objectives: Supported objectives, such as "multiclass"; None: any.

    Returns:
        Decorator of functions whose arguments are named after their inputs, such as `confusion`.
    """

    def register(function: C) -> C:
        vars(function).update(better=better, objectives=None if objectives is None else tuple(objectives))
        return METRICS.register(name, function)

    return register


def variant(name: str, objective: str, better: Better) -> Callable[[C], C]:
    """Register an objective-specific implementation of a built-in metric; arguments as for `metric`."""

    def register(function: C) -> C:
        vars(function).update(better=better, objectives=(objective,))
        _variants[name, objective] = function  # type: ignore[assignment]  # a function
        return function

    return register


def find(
    metrics: Iterable[str | MetricFunction], folders: Iterable[str | Path] = (), objective: str = "multiclass"
) -> dict[str, Metric]:
    """Resolve metrics and return them by their names in records.

    Args:
        metrics: Names with parameters, or functions. A function is recorded under its own name, with a number appended
            if the name is taken.
        folders: Folders to search for `file.py:name`, before the working directory.
        objective: Name of the run's objective, which selects variants and, without metrics, those of `DEFAULTS`.

    Raises:
        BadInput: If a metric is unknown, does not accept the parameters, or does not support the objective.

    >>> list(find(["f1", "ece(bins=10)", lambda confusion: 0.0, lambda confusion: 1.0]))
    ['f1', 'ece(bins=10)', 'lambda', 'lambda_2']
    """
    folders, resolved = list(folders), dict[str, Metric]()
    for item in list(metrics) or DEFAULTS.get(objective, ()):
        name = item if isinstance(item, str) else name_of(item)
        require(name not in RECORDED, f"metrics: every run records {name} already: leave it out or rename it")
        call, function = METRICS.resolve_call(item, folders)
        arguments = {}
        if isinstance(item, str):
            function = _variants.get((call.name, objective), function)
            needed = required(function)
            optional = {name: hint for name, hint in parameters(function).items() if name not in needed}
            arguments = call.arguments("metric", optional)
        unwrapped = function.func if isinstance(function, partial) else function
        better, objectives = getattr(unwrapped, "better", None), getattr(unwrapped, "objectives", None)
        new = Metric(function, _inputs(function), arguments, better, objectives)
        _check_objective(call.text, new, objective)
        candidates = itertools.chain([call.text], (f"{call.text}_{number}" for number in itertools.count(2)))
        resolved[next(name for name in candidates if resolved.get(name, new) == new)] = new
    return resolved


def names(objective: str) -> list[str]:
    """Return the names of the registered metrics that support an objective."""
    supported = {name: getattr(METRICS[name], "objectives", None) or (objective,) for name in METRICS}
    return [name for name, objectives in supported.items() if objective in objectives or (name, objective) in _variants]


def _check_objective(name: str, metric: Metric, objective: str) -> None:
    if metric.objectives is not None and objective not in metric.objectives:
        raise BadInput(f"metric {name} is not for objective={objective}: use one of {', '.join(names(objective))}")
    if lacking := sorted(_LACKS.get(objective, set()) & set(metric.inputs)):
        raise BadInput(f"metric {name} needs {lacking[0]}, which objective={objective} lacks: take y_true and y_pred")


def _inputs(function: Any) -> tuple[str, ...]:
    """Return the inputs named by a function's arguments; empty if an argument is unknown."""
    arguments = required(function)
    return tuple(arguments) if set(arguments) <= {*OF_SAMPLES, "clients"} else ()


# -- values -----------------------------------------------------------------------------------------
@dataclass
class Measured:
    """Values of metrics, and reasons for NaN values."""

    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def measure(metrics: Mapping[str, Metric], predictions: Predictions) -> Measured:
    """Compute the metrics of samples; a metric that is undefined or fails becomes NaN with a note."""
    measured = Measured()
    broken = len(predictions) > 0 and not bool(torch.isfinite(predictions.losses).all())
    for name, metric in metrics.items():
        if metric.of_clients:
            continue
        reason = "some scores are not finite" if broken and metric.needs_scores else None
        reason = reason if len(predictions) else "there are no test samples"
        _add_value(measured, name, metric, lambda key: _input(predictions, key), reason)
    return measured


def measure_clients(
    metrics: Mapping[str, Metric],
    accuracies: Sequence[float | None] | None,
    errors: Sequence[float | None] | None = None,
) -> Measured:
    """Compute the metrics over clients; NaN with a note if no client was evaluated.

    Args:
        metrics: Metrics by name.
        accuracies: Accuracy of each client in per cent.
        errors: Error of each client, used if there are no accuracies, as in a regression.
    """
    measured = Measured()
    values = np.array([value / 100 for value in accuracies or () if value is not None])
    if not len(values):
        values = np.array([value for value in errors or () if value is not None])
    reason = None if len(values) else "no client has its own test samples: set client_test"
    for name, metric in metrics.items():
        if metric.of_clients:
            _add_value(measured, name, metric, lambda _: values.copy(), reason)
    return measured


def _add_value(measured: Measured, name: str, metric: Metric, lookup: Callable[[str], Any], reason: str | None) -> None:
    if reason is None:
        try:
            measured.values[name] = _number(name, metric, lookup)
            if np.isfinite(measured.values[name]):
                return
            reason = f"it returned {measured.values[name]}"
        except (Undefined, BadInput) as error:
            reason = str(error)
    measured.values[name], measured.notes[name] = float("nan"), reason


def _input(predictions: Predictions, name: str) -> Any:
    if name == "predictions":
        return predictions
    return getattr(predictions, name).copy()  # a copy, since a user's function may modify it


def _number(name: str, metric: Metric, lookup: Callable[[str], Any]) -> float:
    with user_code(f"metric {name}"):
        value = metric(lookup)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"metric {name} returned {type(value).__name__}: return one number") from error


def check(metrics: Mapping[str, Metric], classes: int, objective: str = "multiclass") -> None:
    """Check each metric by calling it with correctly predicted samples and one client.

    Raises:
        BadInput: If a metric raises, or does not return a number.
    """
    outputs, y = torch.eye(classes, dtype=torch.float64), torch.arange(classes)
    if not OBJECTIVES[objective].has_classes:
        y = outputs = torch.eye(max(classes, 2), classes, dtype=torch.float64)
    elif objective == "binary":
        outputs = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    predictions = of_outputs(outputs, y, classes, OBJECTIVES[objective]())
    for name, metric in metrics.items():
        try:
            _number(name, metric, lambda key: np.ones(1) if key == "clients" else _input(predictions, key))
        except Undefined:
            continue  # it may be defined for other samples
