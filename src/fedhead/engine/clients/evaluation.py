"""Evaluation results of global and personal models as record entries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedhead.core.training.objectives import OBJECTIVES
from fedhead.metrics.predictions import Predictions
from fedhead.metrics.records import Row
from fedhead.metrics.registry import Measured, Metric, measure, measure_clients


@dataclass(frozen=True)
class ClientTests:
    """Evaluation of the clients' personal models on their own samples; None for a client without samples.

    Attributes:
        accuracy: Accuracy of each client in per cent; None for regression.
        loss: Mean loss of each client.
        samples: Number of test samples of each client.
        steps: Accuracies of a stage's intermediate steps, by step and client.
        metrics: Additional metrics by name and client.
        notes: Reasons for missing metric values, by metric.
        global_row: Record entries of the global model, if remote clients have tested it.
    """

    accuracy: list[float | None]
    loss: list[float | None]
    samples: list[int]
    steps: dict[str, list[float | None]] = field(default_factory=dict)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    global_row: Row = field(default_factory=dict)


@dataclass(frozen=True)
class ClientTest:
    """Evaluation of one client's personal model."""

    accuracy: float | None
    loss: float | None
    measured: Measured = field(default_factory=Measured)


def client_test(predictions: Predictions, metrics: Mapping[str, Metric]) -> ClientTest:
    """Compute the metrics of one client's personal model."""
    return ClientTest(accuracy(predictions), loss(predictions), measure(metrics, predictions))


def client_tests(
    each: Sequence[ClientTest | None], samples: list[int], steps: dict[str, list[float | None]]
) -> ClientTests:
    """Combine the results of all clients; `each` is None for a client that was not evaluated."""
    names = dict.fromkeys(name for test in each if test is not None for name in test.measured.values)
    notes = {}
    for name in names:
        undefined = [(k, t.measured.notes[name]) for k, t in enumerate(each) if t and name in t.measured.notes]
        if undefined:
            reason = "client {}: {}".format(*undefined[0])
            notes[f"client_metrics.{name}"] = f"no value for {len(undefined)} of {len(each)} clients ({reason})"
    return ClientTests(
        [None if test is None else test.accuracy for test in each],
        [None if test is None else test.loss for test in each],
        samples,
        steps,
        {name: [None if test is None else test.measured.values[name] for test in each] for name in names},
        notes,
    )


def global_row(predictions: Predictions, metrics: Mapping[str, Metric], final: bool = False) -> Row:
    """Return the record entries of the global model; `final` adds the confusion matrix."""
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


def summed_row(sums: Sequence[tuple[int, int | None, float | None]], metrics: Mapping[str, float]) -> Row:
    """Return the record entries of the global model on samples of several clients, for `validation_row`.

    Args:
        sums: Number of samples, of correct predictions (None for regression) and sum of the losses, of each client.
        metrics: Additional metrics of all clients' samples.
    """
    samples, corrects, losses = zip(*sums, strict=True) if sums else ((), (), ())
    count = sum(samples)
    known = count > 0 and None not in corrects
    return {
        "accuracy": 100.0 * (sum(corrects) / count) if known else None,
        "test_loss": sum(math.nan if loss is None else loss for loss in losses) / count if count else None,
        "metrics": metrics,
    }


def client_rows(tests: ClientTests) -> Row:
    """Return the record entries of the personal models: values by client, and means over clients.

    `personal` weights all clients equally, `personal_weighted` by their test samples; likewise for losses.
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


def validation_row(entries: Row, tests: ClientTests | None, metrics: Mapping[str, Metric]) -> Row:
    """Return the validation metrics that callbacks watch, in one flat dictionary.

    Args:
        entries: Record entries of the global model on the validation samples, from `global_row`.
        tests: Results of the personal models on the clients' own validation samples.
        metrics: Additional metrics of the run.
    """
    row: Row = {"accuracy": entries["accuracy"], "loss": entries["test_loss"], **entries.get("metrics", {})}
    if tests is not None:
        row |= {"personal": nanmean(tests.accuracy), "personal_loss": nanmean(tests.loss)}
        row |= {name: nanmean(each) for name, each in tests.metrics.items() if entries["test_loss"] is None}
        row |= measure_clients(metrics, tests.accuracy, tests.loss).values
    return row


# -- numbers ------------------------------------------------------------------------------------------
def accuracy(predictions: Predictions) -> float | None:
    """Return the accuracy in per cent; None without samples or for regression.

    A multilabel sample is correct if all its labels are correct, as in scikit-learn's `accuracy_score`.
    """
    correct = predictions.correct
    return None if correct is None or not len(predictions) else 100.0 * (correct / len(predictions))


def loss(predictions: Predictions) -> float | None:
    """Return the mean loss; None without samples."""
    return predictions.loss if len(predictions) else None


def per_class(predictions: Predictions) -> list[float | None] | None:
    """Return the recall of each class or label in per cent, None without samples of it; None for regression."""
    if predictions.objective == "regression":
        return None
    if predictions.objective == "multilabel":
        hits, positives = predictions.y_true * predictions.y_pred, predictions.y_true
    else:
        hits, positives = np.diag(predictions.confusion)[None], predictions.confusion.T
    pairs = zip(hits.sum(axis=0).tolist(), positives.sum(axis=0).tolist(), strict=True)
    return [100.0 * float(hits) / total if total else None for hits, total in pairs]


def nanmean(values: Sequence[float | None], weights: Sequence[float] | None = None) -> float | None:
    """Return the mean of the values, ignoring None and NaN; None if no values remain.

    Args:
        values: Values.
        weights: Weight of each value; None: equal weights.
    """
    pairs = zip(values, [1.0] * len(values) if weights is None else weights, strict=True)
    valid = [(v, w) for v, w in pairs if v is not None and v == v]
    total = sum(w for _, w in valid)
    return sum(v * w for v, w in valid) / total if total else None
