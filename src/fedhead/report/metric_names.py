"""Display names of metrics, and their order."""

from __future__ import annotations

from collections.abc import Iterable

# The metrics that every run may have; those of a recipe follow, under their own names.
METRICS = {
    "accuracy": "accuracy (%)",
    "accuracy_mean": "accuracy over the last rounds (%)",
    "personal": "personal accuracy (%)",
    "train_loss": "training loss",
    "test_loss": "test loss",
    "personal_loss": "personal test loss",
}


def metric_label(metric: str) -> str:
    """Return a metric's name with its unit.

    >>> metric_label("accuracy"), metric_label("f1")
    ('accuracy (%)', 'f1')
    """
    return METRICS.get(metric, metric)


def in_order(metrics: Iterable[str]) -> list[str]:
    """Return metrics in the order in which they are offered."""
    known = list(METRICS)
    return sorted(dict.fromkeys(metrics), key=lambda name: known.index(name) if name in known else len(known))
