"""Evaluation schedule, and the record entries that an evaluation adds."""

from __future__ import annotations

from fedhead.metrics.records import Row

# Record entries written by `rounds.evaluate`.
_OF_GLOBAL_MODEL = ("accuracy", "test_loss", "per_class", "confusion", "metrics", "notes")
_OF_CLIENTS = (
    *("personal", "personal_weighted", "personal_loss", "personal_loss_weighted", "personal_metrics"),
    *("clients", "client_test_loss", "client_metrics", "steps"),
)
EVALUATION = (*_OF_GLOBAL_MODEL, *_OF_CLIENTS, "validation")


def is_evaluated(number: int, rounds: int, evaluate_every: int, last_rounds: int) -> bool:
    """Return whether a round is evaluated.

    >>> [number for number in range(1, 21) if is_evaluated(number, 20, evaluate_every=8, last_rounds=3)]
    [8, 16, 18, 19, 20]
    """
    return number % evaluate_every == 0 or number > rounds - last_rounds


def without_evaluation(row: Row) -> Row:
    """Return a round's record without its evaluation entries."""
    return {name: value for name, value in row.items() if name not in EVALUATION}
