"""Final measurements of runs: one entry per run and per stage, with the seed and the split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedhead.loggers.base import is_number
from fedhead.metrics.records import final_rows, tested_of
from fedhead.recipes.recipe import Recipe

if TYPE_CHECKING:
    from fedhead.runs.read_runs import Run

_TOTALS = ("bytes_up", "bytes_down", "seconds")  # summed over the rounds of a run
_NO_RESULTS = ("round", "lr", "participants", "kept")


class Replicate(NamedTuple):
    """Identity of a repetition of one setting, by which values are paired.

    Args:
        seed: Seed of the run.
        split: Fingerprint of its split; None if unknown.
    """

    seed: int
    split: str | None

    def __str__(self) -> str:
        """Show the seed and the first characters of the split."""
        return f"seed {self.seed}" + ("" if self.split is None else f" on split {self.split[:6]}")


def independent(values: Mapping[Replicate, float]) -> list[float]:
    """Return one value per split, the mean over its seeds; on a single split one value per seed.

    Seeds on the same split share its difficulty, so they are not independent draws.

    >>> independent({Replicate(0, "a"): 1.0, Replicate(1, "a"): 2.0, Replicate(0, "b"): 4.0})
    [1.5, 4.0]
    >>> independent({Replicate(0, "a"): 1.0, Replicate(1, "a"): 2.0})
    [1.0, 2.0]
    """
    splits: dict[str | None, list[float]] = {}
    for replicate, value in values.items():
        splits.setdefault(replicate.split, []).append(value)
    return [fmean(each) for each in splits.values()] if len(splits) > 1 else list(values.values())


@dataclass(frozen=True)
class Measured:
    """Measurements of a finished run at its end, or after one of its stages.

    Args:
        where: Run folder, or another description of the run.
        recipe: Recipe of the run.
        stage: Stage; "" for the end of the rounds.
        replicate: Seed and split.
        values: Numbers by name: accuracy, personal, losses, metrics, bytes, seconds.
        left_out: Site that only tested; None: all sites trained.
        tested: Clients behind the means over clients, such as "2 of 3", if some were lost; "" otherwise.
    """

    where: str
    recipe: Recipe
    stage: str
    replicate: Replicate
    values: Mapping[str, float]
    left_out: str | None = None
    tested: str = ""


def of_runs(runs: Sequence[Run]) -> list[Measured]:
    """Return the measurements of finished runs: each at its end, then after its stages."""
    out: list[Measured] = []
    for run in runs:
        if run.result is not None:
            replicate = Replicate(run.recipe.seed, run.split)
            values = {"": _at_the_end(run)} | {name: _numbers(row) for name, row in run.stage_rows.items()}
            last = next((row for row in reversed(final_rows(run.rows)) if row.get("personal") is not None), {})
            rows = {"": last} | run.stage_rows
            for stage, numbers in values.items():
                every = len(rows[stage].get("clients") or []) - (run.left_out is not None)
                tested = tested_of(rows[stage], every)
                out.append(Measured(str(run.path), run.recipe, stage, replicate, numbers, run.left_out, tested))
    return out


def _at_the_end(run: Run) -> dict[str, float]:
    """Return the values of the last or best round, and totals over all rounds."""
    end = {name: value for row in final_rows(run.rows) for name, value in row.items() if value is not None}
    end["accuracy_mean"] = (run.result or {}).get("accuracy_mean")
    return _numbers(end) | {name: float(sum(row[name] for row in run.rows)) for name in _TOTALS if run.rows}


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    personal = {f"personal_{name}": value for name, value in (row.get("personal_metrics") or {}).items()}
    entries = {**row, **(row.get("metrics") or {}), **personal}
    return {name: float(v) for name, v in entries.items() if name not in _NO_RESULTS and is_number(v)}
