"""Evaluation schedule, and the record entries that an evaluation adds."""

from __future__ import annotations

from typing import Any

from fedhead.core.system.errors import BadInput
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


class UntestedRow(dict[str, Any]):
    """A round's record as callbacks see it: without scores on test samples, which must not decide anything.

    Args:
        row: Whole record.
    """

    def __init__(self, row: Row):
        super().__init__(without_evaluation(row) | {name: row[name] for name in ("validation",) if name in row})

    def __missing__(self, name: str) -> Any:
        if name in EVALUATION:
            raise BadInput(
                f"a callback reads row[{name!r}], which this round lacks or which is measured on test samples: set "
                "validation=0.1 and read row['validation'] in evaluated rounds, or read row['train_loss']"
            )
        raise KeyError(name)
