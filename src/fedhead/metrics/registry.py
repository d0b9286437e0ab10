"""Metrics by name: how they are found, what they are given, and what becomes of one that has no value.

A metric is a function whose arguments are named after what it is given:

- `confusion`: samples by true and predicted class, [C, C];
- `y_true`, `y_pred`, `y_proba`, `y_score`: arrays as scikit-learn's functions name them, so that those are metrics too;
- `predictions`: all of these with the tensors on the device (`fedhead.metrics.predictions.Predictions`);
- `clients`: the accuracy of each client on its own test samples, from 0 to 1; its mean squared error in a regression.

Further parameters have default values, which recipes set as in `ece(bins=10)`. A metric that has no value for some
samples raises `Undefined`: the record then holds NaN and a note with the reason, and the run goes on.
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

from fedhead.core.components.component_check import check_function
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
CLASSIFICATION = ("multiclass", "binary")  # the objectives whose predictions are classes
DEFAULTS = {"multilabel": ("f1",), "regression": ("mae", "r2")}  # where no metrics are asked for
_LACKS = {"multilabel": {"confusion"}, "regression": {"confusion", "y_proba", "y_score"}}  # of OF_SAMPLES
_variants: dict[tuple[str, str], MetricFunction] = {}  # by name and objective


class Undefined(FedheadError):
    """A metric has no value for these samples; the message says why."""


@dataclass(frozen=True)
class Metric:
    """A metric with its parameters set.

    Attributes:
        function: The function.
        inputs: What it is given, by the names of its arguments.
        arguments: Its parameters.
        better: Whether high or low values are good; None where nobody said.
        objectives: The objectives that it is for; None: any.
    """

    function: MetricFunction
    inputs: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    better: Better | None = None
    objectives: tuple[str, ...] | None = None

    def __call__(self, given: Callable[[str], Any]) -> Any:
        """Call the function with what `given` returns for each of its inputs."""
        return self.function(**{word: given(word) for word in self.inputs}, **self.arguments)

    @property
    def of_clients(self) -> bool:
        """Whether it is computed from the accuracies of the clients."""
        return "clients" in self.inputs

    @property
    def needs_scores(self) -> bool:
        """Whether it needs more than labels and predicted classes."""
        return not self.of_clients and not WITHOUT_SCORES.issuperset(self.inputs)


NO_METRICS: Mapping[str, Metric] = MappingProxyType({})


def _checked(found: Any, name: str) -> MetricFunction:
    """Return a function whose arguments are known, or refuse it in one line."""
    function = check_function(found, name, "metric", [], "a number", open_ended=True)
    known = ", ".join(OF_SAMPLES)
    taken = ", ".join(required(function))
    require(_inputs(function), f"{name} takes ({taken}): name its arguments after what it needs: {known} or clients")
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
"""The metrics by name."""


def metric(name: str, better: Better | None = None, objectives: Sequence[str] | None = None) -> Callable[[C], C]:
    """Register a metric under a name.

    Args:
        name: The name, for recipes and records.
        better: "max" or "min": which values are good; callbacks that watch the metric need to know.
        objectives: The objectives that it is for, such as "multiclass"; None: any.

    Returns:
        A decorator of functions whose arguments are named after what they are given, such as `confusion`.
    """

    def register(function: C) -> C:
        vars(function).update(better=better, objectives=None if objectives is None else tuple(objectives))
        return METRICS.register(name, function)

    return register


def variant(name: str, objective: str, better: Better) -> Callable[[C], C]:
    """Register what a built-in metric is for another objective than that of classes; arguments as of `metric`."""

    def register(function: C) -> C:
        vars(function).update(better=better, objectives=(objective,))
        _variants[name, objective] = function  # type: ignore[assignment]  # a function
        return function

    return register


def find(
    metrics: Iterable[str | MetricFunction], folders: Iterable[str | Path] = (), objective: str = "multiclass"
) -> dict[str, Metric]:
    """Return metrics by the names that records call them by.

    Args:
        metrics: Names with parameters, or functions; a function has its own name, with a number behind it if another
            one has that too.
        folders: Where `file.py:name` is looked for, before the working directory.
        objective: Name of the run's objective; some metrics differ between objectives. Where no metrics are given,
            those of `DEFAULTS` are taken.

    Raises:
        BadInput: If there is no such metric, it does not take these parameters, or is for another objective.

    >>> list(find(["accuracy", "ece(bins=10)", lambda confusion: 0.0, lambda confusion: 1.0]))
    ['accuracy', 'ece(bins=10)', 'lambda', 'lambda_2']
    """
    folders, found = list(folders), dict[str, Metric]()
    for given in list(metrics) or DEFAULTS.get(objective, ()):
        call, function = METRICS.resolve_call(given, folders)
        arguments = {}
        if isinstance(given, str):
            function = _variants.get((call.name, objective), function)
            needed = required(function)
            own = {name: hint for name, hint in parameters(function).items() if name not in needed}
            arguments = call.arguments("metric", own)
        plain = function.func if isinstance(function, partial) else function
        better, objectives = getattr(plain, "better", None), getattr(plain, "objectives", None)
        made = Metric(function, _inputs(function), arguments, better, objectives)
        _check_objective(call.text, made, objective)
        taken = itertools.chain([call.text], (f"{call.text}_{number}" for number in itertools.count(2)))
        found[next(free for free in taken if found.get(free, made) == made)] = made
    return found


def names(objective: str) -> list[str]:
    """Return the names of the registered metrics that are for an objective."""
    fits = {one: getattr(METRICS[one], "objectives", None) or (objective,) for one in METRICS}
    return [one for one, objectives in fits.items() if objective in objectives or (one, objective) in _variants]


def _check_objective(name: str, metric: Metric, objective: str) -> None:
    if metric.objectives is not None and objective not in metric.objectives:
        raise BadInput(f"metric {name} is not for objective={objective}: use one of {', '.join(names(objective))}")
    if lacking := sorted(_LACKS.get(objective, set()) & set(metric.inputs)):
        raise BadInput(f"metric {name} needs {lacking[0]}, which objective={objective} has not: take y_true and y_pred")


def _inputs(function: Any) -> tuple[str, ...]:
    """Return the inputs that a function's arguments name; none where an argument is unknown."""
    given = required(function)
    return tuple(given) if set(given) <= {*OF_SAMPLES, "clients"} else ()


# -- values -----------------------------------------------------------------------------------------
@dataclass
class Measured:
    """Values of metrics by name, and why some of them are NaN."""

    values: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def measure(metrics: Mapping[str, Metric], predictions: Predictions) -> Measured:
    """Compute the metrics of samples; one that has no value, or whose function fails, is NaN with a note."""
    found = Measured()
    broken = len(predictions) > 0 and not bool(torch.isfinite(predictions.losses).all())
    for name, one in metrics.items():
        if one.of_clients:
            continue
        reason = "some scores are not finite" if broken and one.needs_scores else None
        reason = reason if len(predictions) else "there are no test samples"
        _enter(found, name, one, lambda word: _given(predictions, word), reason)
    return found


def measure_clients(
    metrics: Mapping[str, Metric],
    accuracies: Sequence[float | None] | None,
    errors: Sequence[float | None] | None = None,
) -> Measured:
    """Compute the metrics of the clients' tests; NaN with a note where there are none.

    Args:
        metrics: The metrics, by name.
        accuracies: Of each client, in per cent.
        errors: Of each client; they take the place of the accuracies where there are none, as in a regression.
    """
    found = Measured()
    tested = np.array([value / 100 for value in accuracies or () if value is not None])
    if not len(tested):
        tested = np.array([value for value in errors or () if value is not None])
    reason = None if len(tested) else "no client has its own test samples: set client_test"
    for name, one in metrics.items():
        if one.of_clients:
            _enter(found, name, one, lambda _: tested.copy(), reason)
    return found


def _enter(into: Measured, name: str, one: Metric, given: Callable[[str], Any], reason: str | None) -> None:
    if reason is None:
        try:
            into.values[name] = _number(name, one, given)
            if np.isfinite(into.values[name]):
                return
            reason = f"it returned {into.values[name]}"
        except (Undefined, BadInput) as error:
            reason = str(error)
    into.values[name], into.notes[name] = float("nan"), reason


def _given(predictions: Predictions, word: str) -> Any:
    if word == "predictions":
        return predictions
    return getattr(predictions, word).copy()  # a user's function may write into it


def _number(name: str, one: Metric, given: Callable[[str], Any]) -> float:
    with user_code(f"metric {name}"):
        value = one(given)
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise BadInput(f"metric {name} returned {type(value).__name__}: return one number") from error


def check(metrics: Mapping[str, Metric], classes: int, objective: str = "multiclass") -> None:
    """Call each metric once, for samples that are predicted right and for one client.

    Raises:
        BadInput: If a metric raises, or returns no number.
    """
    outputs, y = torch.eye(classes, dtype=torch.float64), torch.arange(classes)
    if not OBJECTIVES[objective].has_classes:
        y = outputs = torch.eye(max(classes, 2), classes, dtype=torch.float64)
    elif objective == "binary":
        outputs = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    predictions = of_outputs(outputs, y, classes, OBJECTIVES[objective]())
    for name, one in metrics.items():
        try:
            _number(name, one, lambda word: np.ones(1) if word == "clients" else _given(predictions, word))
        except Undefined:
            continue  # for these samples only
