"""Loggers of a run, and the final results for loggers and run folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

from fedhead.core.system import log
from fedhead.core.system.errors import first_line, user_code
from fedhead.core.tree.inputs import tensors_of
from fedhead.engine.rounds.observer import FinishedRun, Observer, Snapshot
from fedhead.loggers.base import Logger, RunInfo
from fedhead.metrics.records import Row
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder_schema import finite

# Entries of the final results, in order: keys of the recipe, and properties of `RunMetrics`.
_KEYS = ("dataset", "partition", "method", "model", "seed", "rounds")
_MEASURED = ("accuracy", "accuracy_mean", "metrics", "train_loss", "test_loss", "personal")
_COSTS = ("bytes_up", "bytes_down", "client_bytes", "seconds", "compile_seconds", "compiled_from", "executor")


class RunLoggers(Observer):
    """Loggers of a run; a failing logger is reported once and then disabled.

    Args:
        recipe: Recipe of the run.
        folder: Run folder, which does not exist yet; None: the run has no folder.
        loggers: Loggers.

    Raises:
        BadInput: If a logger can't be used.
    """

    def __init__(self, recipe: Recipe, folder: Path | None, loggers: Sequence[Logger]):
        self._recipe, self._folder, self._active = recipe, folder, list(loggers)
        for target in loggers:
            with user_code(f"logger {target.name}"):
                target.check(folder)

    def start(self, name: str, resume: Snapshot | None) -> None:
        """Start the loggers with the recipe and the earlier rounds."""
        run = RunInfo(self._recipe.flat(), self._folder, () if resume is None else resume.history)
        self._each("start", lambda target: target.start(run))

    def round(self, row: Row, snapshot: Snapshot) -> None:
        """Log the record of a round."""
        self._each(f"round {row['round']}", lambda target: target.log_round(copy.deepcopy(row)))  # may be modified

    def end(self, result: FinishedRun) -> None:
        """Log the final results."""
        metrics = final_metrics(str(self._folder or ""), self._recipe, result)
        self._each("the result", lambda target: target.log_result(copy.deepcopy(metrics)))

    def close(self) -> None:
        """Flush and close the loggers."""
        self._each("the end", lambda target: target.close())
        self._active = []

    def _each(self, when: str, call: Callable[[Logger], None]) -> None:
        for target in list(self._active):
            try:
                call(target)
            except Exception as error:  # the run continues without this logger
                self._active.remove(target)
                log.logger.warning(
                    f"logger {target.name} failed at {when} and is left out from now on ({first_line(error)})"
                )


def final_metrics(out: str, recipe: Recipe, result: FinishedRun) -> Row:
    """Return the results of a finished run in the format of `result.json`."""
    public = result.transport.clients.federation.public
    ends_with = result.rows if result.best_round is None else result.rows[: result.best_round]
    last = next((row for row in reversed(ends_with) if "accuracy" in row), {})
    chosen = {"best_round": result.best_round, "trained_rounds": len(result.rows)} if recipe.callbacks else {}
    if result.rows and "stopped" in result.rows[-1]:
        chosen = {"trained_rounds": len(result.rows), **chosen, "stopped": result.rows[-1]["stopped"]}
    metrics: Row = {
        "run": out,
        **{key: getattr(recipe, key) for key in _KEYS},
        **chosen,
        **{name: getattr(result, name) for name in _MEASURED},
        "per_class": last.get("per_class"),
        "confusion": result.confusion,
        "notes": last.get("notes", {}),
        "clients": last.get("clients"),
        "stages": result.stage_rows,
        **{name: getattr(result, name) for name in _COSTS},
    }
    return {**finite(metrics), "public_bytes": 0 if public is None else sum(t.nbytes for t in tensors_of(public.x))}
