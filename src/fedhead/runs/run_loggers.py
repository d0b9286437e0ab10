"""The loggers of a run, and the results that they and the run folder hold."""

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


class RunLoggers(Observer):
    """The loggers of a run; one that fails is named once and left out from then on.

    Args:
        recipe: The run's recipe.
        folder: The run folder, which is not there yet; None: the run has none.
        loggers: The loggers.

    Raises:
        BadInput: If one of them can't be used.
    """

    def __init__(self, recipe: Recipe, folder: Path | None, loggers: Sequence[Logger]):
        self._recipe, self._folder, self._active = recipe, folder, list(loggers)
        for one in loggers:
            with user_code(f"logger {one.name}"):
                one.check(folder)

    def start(self, name: str, resume: Snapshot | None) -> None:
        """Tell them what is run, and of earlier rounds."""
        run = RunInfo(self._recipe.flat(), self._folder, () if resume is None else resume.history)
        self._each("start", lambda one: one.start(run))

    def round(self, row: Row, snapshot: Snapshot) -> None:
        """Pass on the record of a round."""
        self._each(f"round {row['round']}", lambda one: one.log_round(copy.deepcopy(row)))  # theirs to change

    def end(self, result: FinishedRun) -> None:
        """Pass on the final results."""
        metrics = final_metrics(str(self._folder or ""), self._recipe, result)
        self._each("the result", lambda one: one.log_result(copy.deepcopy(metrics)))

    def close(self) -> None:
        """Write out what is pending."""
        self._each("the end", lambda one: one.close())
        self._active = []

    def _each(self, when: str, call: Callable[[Logger], None]) -> None:
        for one in list(self._active):
            try:
                call(one)
            except Exception as error:  # a server that is down, a full disk, a bug: the run's own records go on
                self._active.remove(one)
                log.logger.warning(
                    f"logger {one.name} failed at {when} and is left out from now on ({first_line(error)})"
                )


def final_metrics(out: str, recipe: Recipe, result: FinishedRun) -> Row:
    """Return the results of a finished run, as `result.json` holds them."""
    public = result.transport.clients.federation.public
    ends_with = result.rows if result.best_round is None else result.rows[: result.best_round]
    last = next((row for row in reversed(ends_with) if "accuracy" in row), {})
    chosen = {"best_round": result.best_round, "trained_rounds": len(result.rows)} if recipe.callbacks else {}
    if result.rows and "stopped" in result.rows[-1]:
        chosen = {"trained_rounds": len(result.rows), **chosen, "stopped": result.rows[-1]["stopped"]}
    metrics: Row = {
        "run": out,
        "dataset": recipe.dataset,
        "partition": recipe.partition,
        "method": recipe.method,
        "model": recipe.model,
        "seed": recipe.seed,
        "rounds": recipe.rounds,
        **chosen,
        "accuracy": result.accuracy,
        "accuracy_mean": result.accuracy_mean,
        "metrics": result.metrics,
        "train_loss": result.train_loss,
        "test_loss": result.test_loss,
        "personal": result.personal,
        "per_class": last.get("per_class"),
        "confusion": result.confusion,
        "notes": last.get("notes", {}),
        "clients": last.get("clients"),
        "stages": {name: stage.metrics for name, stage in result.stages.items()},
        "bytes_up": result.bytes_up,
        "bytes_down": result.bytes_down,
        "client_bytes": result.client_bytes,
        "seconds": result.seconds,
        "preparing": result.preparing,
        "compiled_from": result.compiled_from,
        "executor": result.executor,
    }
    return {**finite(metrics), "public_bytes": 0 if public is None else sum(t.nbytes for t in tensors_of(public.x))}
