"""Evaluation: what records hold of a test, of the global model and of every client's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedhead.core.training.objectives import OBJECTIVES
from fedhead.metrics.predictions import Predictions
from fedhead.metrics.records import Row
from fedhead.metrics.registry import Measured, Metric, measure, measure_clients


@dataclass(frozen=True)
class ClientTests:
    """How the clients' own models did on the clients' own samples; None for a client without any.

    Attributes:
        accuracy: Per cent, of each client; None of a regression.
        loss: The mean loss, of each client.
        samples: Test samples of each client.
        steps: Accuracies at the states on the way of a stage.
        metrics: Further metrics of each client, by name.
        notes: Why some of these are NaN, by name.
    """

    accuracy: list[float | None]
    loss: list[float | None]
    samples: list[int]
    steps: dict[str, list[float | None]] = field(default_factory=dict)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientTest:
    """The test of one client's own model."""

    accuracy: float | None
    loss: float | None
    measured: Measured = field(default_factory=Measured)


def client_test(predictions: Predictions, metrics: Mapping[str, Metric]) -> ClientTest:
    """Return what is recorded of the test of one client's own model."""
    return ClientTest(accuracy(predictions), loss(predictions), measure(metrics, predictions))


def client_tests(
    each: Sequence[ClientTest | None], samples: list[int], steps: dict[str, list[float | None]]
) -> ClientTests:
    """Collect the tests of all clients; None for one that was not tested."""
    names = dict.fromkeys(name for one in each if one is not None for name in one.measured.values)
    notes = {}
    for name in names:
        undefined = [(k, one.measured.notes[name]) for k, one in enumerate(each) if one and name in one.measured.notes]
        if undefined:
            reason = "client {}: {}".format(*undefined[0])
            notes[f"client_metrics.{name}"] = f"no value for {len(undefined)} of {len(each)} clients ({reason})"
    return ClientTests(
        [None if one is None else one.accuracy for one in each],
        [None if one is None else one.loss for one in each],
        samples,
        steps,
        {name: [None if one is None else one.measured.values[name] for one in each] for name in names},
        notes,
    )


def global_row(predictions: Predictions, metrics: Mapping[str, Metric], final: bool = False) -> Row:
    """Return what is recorded of the test of the global model; with `final` also the confusion matrix."""
    row: Row = {
        "accuracy": accuracy(predictions),
        "test_loss": loss(predictions),
        "per_class": per_class(predictions),
    }
    measured = measure(metrics, predictions)
    if measured.values:
        row["metrics"] = measured.values
    if measured.notes:
        row["notes"] = measured.notes
    if final and OBJECTIVES[predictions.objective].has_classes:
        row["confusion"] = predictions.confusion.tolist()
    return row


def client_rows(tests: ClientTests) -> Row:
    """Return what is recorded of the clients' own tests: each client's, and means over the clients.

    `personal` counts all clients alike, `personal_weighted` by their test samples; the losses likewise.
    """
    row: Row = {
        "personal": nanmean(tests.accuracy),
        "personal_weighted": nanmean(tests.accuracy, tests.samples),
        "personal_loss": nanmean(tests.loss),
        "personal_loss_weighted": nanmean(tests.loss, tests.samples),
        "clients": tests.accuracy,
        "client_test_loss": tests.loss,
    }
    if tests.steps:
        row["steps"] = {name: nanmean(each) for name, each in tests.steps.items()}
    if tests.metrics:
        row["personal_metrics"] = {name: nanmean(each) for name, each in tests.metrics.items()}
        row["client_metrics"] = tests.metrics
    return row


def validation_row(found: Row, tests: ClientTests | None, metrics: Mapping[str, Metric]) -> Row:
    """Return what callbacks watch: each number under one name, metrics too.

    Args:
        found: The test of the global model on the validation samples, as `global_row` returns it.
        tests: The tests of the clients' own models on their own.
        metrics: The run's further metrics.
    """
    row: Row = {"accuracy": found["accuracy"], "loss": found["test_loss"], **found.get("metrics", {})}
    if tests is not None:
        row |= {"personal": nanmean(tests.accuracy), "personal_loss": nanmean(tests.loss)}
        row |= {name: nanmean(each) for name, each in tests.metrics.items() if found["test_loss"] is None}
        row |= measure_clients(metrics, tests.accuracy, tests.loss).values
    return row


# -- numbers ------------------------------------------------------------------------------------------
def accuracy(predictions: Predictions) -> float | None:
    """The share of hits in per cent, or None where there was nothing to test, or where numbers are predicted.

    A sample with several labels is a hit if all of them are right, as in scikit-learn's `accuracy_score`.
    """
    if not len(predictions) or predictions.objective == "regression":
        return None
    if predictions.objective == "multilabel":
        return 100.0 * float((predictions.predicted == predictions.y).all(-1).double().mean())
    counts = predictions.confusion
    return 100.0 * (float(counts.trace()) / int(counts.sum()))


def loss(predictions: Predictions) -> float | None:
    """The mean loss, or None where there was nothing to test."""
    return predictions.loss if len(predictions) else None


def per_class(predictions: Predictions) -> list[float | None] | None:
    """The recall of each class or label in per cent, None for one without test samples; None for numbers."""
    if predictions.objective == "regression":
        return None
    if predictions.objective == "multilabel":
        hits, held = predictions.y_true * predictions.y_pred, predictions.y_true
    else:
        hits, held = np.diag(predictions.confusion)[None], predictions.confusion.T
    pairs = zip(hits.sum(axis=0).tolist(), held.sum(axis=0).tolist(), strict=True)
    return [100.0 * float(hits) / total if total else None for hits, total in pairs]


def nanmean(values: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """Return the mean of the values that are there, neither None nor NaN; None where there are none.

    Args:
        values: The values.
        weights: One weight per value; None: all count alike.
    """
    pairs = zip(values, [1.0] * len(values) if weights is None else weights, strict=True)
    there = [(v, w) for v, w in pairs if v is not None and v == v]
    total = sum(w for _, w in there)
    return sum(v * w for v, w in there) / total if total else None
