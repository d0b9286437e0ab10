"""The trials of a study: what each chose and reached, and their table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pandas as pd

from fedhead.recipes.search_space import Dimension

TRIALS = "trials.csv"
# the keys that are searched stand before the last; no key of a recipe is among these names
COLUMNS = ("trial", "state", "value", "trained_rounds", "seconds", "reason")
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "RUNNING": "running", "FAIL": "failed", "WAITING": "waiting"}
RETRIED = "retried"  # the state of a failed trial in whose place there is another one
REASON, RETRYABLE = "reason", "retryable"  # what Optuna keeps of a trial that ended early


class Outcome(NamedTuple):
    """How a trial ended.

    Args:
        state: `complete`, `pruned` or `failed`.
        value: What a complete trial reached.
        reason: Why it ended early.
        retryable: Whether a failed trial may succeed when it is tried again, as after an error that was fixed.
    """

    state: Literal["complete", "pruned", "failed"]
    value: float | None = None
    reason: str = ""
    retryable: bool = False


@dataclass(frozen=True)
class TrialRecord:
    """A trial of a study.

    Args:
        number: Its number, from 0.
        state: `complete`, `pruned`, `running`, `failed`, `retried` (failed, and tried again as another trial) or
            `waiting`.
        value: What was reached; of a pruned trial the last value that was reported.
        trained_rounds: The rounds that were trained.
        seconds: How long it took.
        values: What was chosen, by key.
        reason: Why it ended early.
        retryable: Whether it failed by an error, so that the same command tries it again.
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
    """Return trials as the text of a CSV file, one row each."""
    rows = []
    for one in trials:
        seconds = None if one.seconds is None else round(one.seconds, 2)
        chosen = [one.values.get(dimension.key) for dimension in space]
        rows.append([one.number, one.state, one.value, one.trained_rounds, seconds, *chosen, one.reason])
    columns = [*COLUMNS[:-1], *(one.key for one in space), COLUMNS[-1]]
    return str(pd.DataFrame(rows, columns=columns, dtype=object).to_csv(index=False))


def record(trial: Any, space: Sequence[Dimension], retried: bool = False) -> TrialRecord:
    """Return what a trial of Optuna chose and reached.

    Args:
        trial: Optuna's frozen trial.
        space: The keys that are searched; others are left out.
        retried: Whether it failed, and there is another one in its place.
    """
    kinds = {one.key: one.kind for one in space}
    values = {
        key: json.loads(value) if kinds.get(key) == "choice" else value
        for key, value in trial.params.items()
        if key in kinds
    }
    last = max(trial.intermediate_values, default=0)
    value = trial.intermediate_values.get(last) if trial.state.name in ("PRUNED", "RUNNING") else trial.value
    seconds = None if trial.duration is None else trial.duration.total_seconds()
    state, kept = RETRIED if retried else STATES[trial.state.name], trial.user_attrs
    reason = kept.get(REASON, "its process was stopped" if retried else "")
    return TrialRecord(trial.number, state, value, last, seconds, values, reason, kept.get(RETRYABLE, False))
