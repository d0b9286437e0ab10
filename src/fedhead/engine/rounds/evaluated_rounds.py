"""The rounds that are evaluated, and the entries that this adds to their records."""

from __future__ import annotations

from fedhead.metrics.records import Row

# What `rounds.evaluate` enters into a record.
_OF_GLOBAL_MODEL = ("accuracy", "test_loss", "per_class", "confusion", "metrics", "notes")
_OF_CLIENTS = (
    *("personal", "personal_weighted", "personal_loss", "personal_loss_weighted", "personal_metrics"),
    *("clients", "client_test_loss", "client_metrics", "steps"),
)
EVALUATION = (*_OF_GLOBAL_MODEL, *_OF_CLIENTS, "validation")


def is_evaluated(number: int, rounds: int, evaluate_every: int, last_rounds: int) -> bool:
    """Return whether a round's models are tested.

    >>> [number for number in range(1, 21) if is_evaluated(number, 20, evaluate_every=8, last_rounds=3)]
    [8, 16, 18, 19, 20]
    """
    return number % evaluate_every == 0 or number > rounds - last_rounds


def without_evaluation(row: Row) -> Row:
    """Return the record of a round as it is where the round is not evaluated."""
    return {name: value for name, value in row.items() if name not in EVALUATION}
