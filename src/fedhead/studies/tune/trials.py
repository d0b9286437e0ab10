"""Trials of a study: records with values and outcomes, and their table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fedhead.core.system.spreadsheet import without_formulas
from fedhead.recipes.search_space import Dimension

TRIALS = "trials.csv"
# Searched keys are inserted before the last column; no recipe key has one of these names.
COLUMNS = ("trial", "state", "value", "trained_rounds", "seconds", "reason")
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "RUNNING": "running", "FAIL": "failed", "WAITING": "waiting"}
RETRIED = "retried"  # state of a failed trial that was retried as another one
REASON, RETRYABLE = "reason", "retryable"  # user attributes of an Optuna trial that ended early


class Outcome(NamedTuple):
    """Outcome of a trial.

    Args:
        state: `complete`, `pruned` or `failed`.
        value: Value of a complete trial.
        reason: Reason of an early end.
        retryable: Whether a retry of a failed trial may succeed, such as after a fixed error.
    """

    state: Literal["complete", "pruned", "failed"]
    value: float | None = None
    reason: str = ""
    retryable: bool = False


@dataclass(frozen=True)
class TrialRecord:
    """Record of a trial.

    Args:
        number: Number of the trial, from 0.
        state: `complete`, `pruned`, `running`, `failed`, `retried` (failed, and retried as another trial) or
            `waiting`.
        value: Value of the objective; of a pruned trial the last reported one.
        trained_rounds: Number of trained rounds.
        seconds: Duration.
        values: Searched values, by key.
        reason: Reason of an early end.
        retryable: Whether the trial failed with an error, so that the same command retries it.
    """

    number: int
    state: str
    value: float | None
    trained_rounds: int
    seconds: float | None
    values: Mapping[str, Any]
    reason: str = ""
    retryable: bool = False


def to_csv(trials: Sequence[TrialRecord], space: Sequence[Dimension]) -> str:
    """Format trials as CSV, one row each."""
    import pandas as pd  # `import fedhead` is quicker without

    rows = []
    for trial in trials:
        seconds = None if trial.seconds is None else round(trial.seconds, 2)
        chosen = [trial.values.get(dimension.key) for dimension in space]
        rows.append([trial.number, trial.state, trial.value, trial.trained_rounds, seconds, *chosen, trial.reason])
    columns = [*COLUMNS[:-1], *(dimension.key for dimension in space), COLUMNS[-1]]
    return str(without_formulas(pd.DataFrame(rows, columns=columns, dtype=object)).to_csv(index=False))


def record(trial: Any, space: Sequence[Dimension], retried: bool = False) -> TrialRecord:
    """Convert an Optuna trial to a record.

    Args:
        trial: Optuna's frozen trial.
        space: Searched keys; others are left out.
        retried: Whether the trial failed and was retried as another one.
    """
    kinds = {dimension.key: dimension.kind for dimension in space}
    values = {
        key: json.loads(value) if kinds.get(key) == "choice" else value
        for key, value in trial.params.items()
        if key in kinds
    }
    last = max(trial.intermediate_values, default=0)
    value = trial.intermediate_values.get(last) if trial.state.name in ("PRUNED", "RUNNING") else trial.value
    value = None if value is None else float(value)
    seconds = None if trial.duration is None else trial.duration.total_seconds()
    state, kept = RETRIED if retried else STATES[trial.state.name], trial.user_attrs
    reason = kept.get(REASON, "its process was stopped" if retried else "")
    return TrialRecord(trial.number, state, value, last, seconds, values, reason, kept.get(RETRYABLE, False))
