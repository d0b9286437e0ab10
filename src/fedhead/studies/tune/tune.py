"""Tuning: search for the best recipe values on validation samples."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.engine.experiment.compute import Compute
from fedhead.metrics.records import Row
from fedhead.recipes.recipe import Recipe, load
from fedhead.recipes.search_space import read_space, with_settings, with_values
from fedhead.runs.run import check_compute, execute
from fedhead.runs.run_folder import RunFolder
from fedhead.studies.engines import LocalEngine
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.tune.study import MOST_SEED, Study
from fedhead.studies.tune.trial_training import VALIDATION, Direction, TrialTraining
from fedhead.studies.tune.trials import TrialRecord


@dataclass(frozen=True)
class TuneResult:
    """Result of a search.

    Args:
        folder: Folder of the study.
        recipe: Best recipe, also stored as `best.yaml` in the folder.
        best: Best trial, the first of equal ones.
        direction: Direction of the objective, `maximize` or `minimize`.
        trials: All trials.
        final: Test results of the final training on all training samples; None without final training.
    """

    folder: Path
    recipe: Recipe
    best: TrialRecord
    direction: Direction
    trials: list[TrialRecord]
    final: Row | None = None

    @property
    def value(self) -> float:
        """Value of the best trial on validation samples."""
        assert self.best.value is not None, "of a complete trial"
        return self.best.value

    @property
    def failed(self) -> list[TrialRecord]:
        """Failed trials that were not retried."""
        return [trial for trial in self.trials if trial.state == "failed"]


def tune(
    recipe: str | Path | Recipe,
    *assignments: str,
    out: str | Path,
    trials: int = 20,
    objective: str = "accuracy",
    sampler: str = "tpe",
    pruner: str = "median",
    validation: float | None = None,
    allow_changed_code: bool = False,
    minutes: float | None = None,
    final: bool = False,
    seed: int = 0,
    compute: Compute | None = None,
    on_trial: Callable[[TrialRecord], None] = lambda trial: None,
) -> TuneResult:
    """Search for the best values of recipe keys on validation samples.

    The search never uses test samples. It validates on a share of each client's training samples (the protocol of
    CCVR), which the final training uses again. The study is stored in an SQLite file in `out`. The same call resumes
    an interrupted study, or joins one that another process is running.

    Args:
        recipe: Recipe, name of a built-in one, or recipe file.
        *assignments: `key=value`, or a search range: `key=log(1e-4, 1e-1)`, `key=uniform(0, 1)`, `key=int(1, 10)`,
            `key=choice(a, b)`.
        out: Folder of the study.
        trials: Total number of trials of the study, over all processes.
        objective: `accuracy` (of the global model), `personal` (mean over the clients' personal models), `loss`,
            `personal_loss`, or a metric.
        sampler: `tpe`, `gp` (a Gaussian process) or `random`.
        pruner: Pruning rule: `median` (end trials below the median of the others), `halving` (successive halving),
            or `none`.
        validation: Share of each client's training samples for validation; None: the recipe's, or 0.15. The final
            training uses them all, except those that the recipe holds back for its callbacks.
        allow_changed_code: Add trials to those of an older version of your code.
        minutes: Time after which no trial is started.
        final: Train the best recipe on all training samples, in the folder `final`.
        seed: Seed of the sampler.
        compute: Device, precision and data folder.
        on_trial: Called with each trial that has ended in this process.

    Returns:
        The best recipe and all trials.

    Raises:
        BadInput: An argument is invalid, no key has a range, or the folder holds another study or one of an older
            version of your code.
        FedheadError: No trial has a result: all failed, or the first ten did.
    """
    compute = compute or Compute()
    compute = replace(compute, allow_changed_code=allow_changed_code or compute.allow_changed_code)
    check("trials", trials, Annotated[int, AtLeast(1)])
    budget = TimeBudget(minutes)
    check("seed", seed, Annotated[int, AtLeast(0), AtMost(MOST_SEED)])
    space, others = read_space(assignments)
    base = with_settings(recipe if isinstance(recipe, Recipe) else load(recipe), others)
    # Checked before the first trial, since every trial would fail for the same reason.
    check_compute(compute, base.folders, LocalEngine().device(compute))
    if not space:
        raise BadInput("nothing is searched: give a range to at least one key, such as lr=log(1e-4, 1e-1)")
    share = next(value for value in (validation, base.validation, VALIDATION) if value is not None)
    share = check("validation", share, Annotated[float, Above(0), Below(1)])
    if not base.callbacks:  # only callbacks need validation samples in the final training
        base = replace(base, validation=None)
    search = TrialTraining.make(base, space, objective, share, compute)
    study = Study(
        Path(out), search, trials=trials, budget=budget, on_trial=on_trial, sampler=sampler, pruner=pruner, seed=seed
    )
    engine = LocalEngine()
    with closing(study):
        study.check_code(final=final, allow=compute.allow_changed_code)
        try:
            engine.run(study)
            while study.is_running and not budget.exhausted:  # in another process, which may be killed
                time.sleep(1)
                engine.run(study)
        except BaseException as error:
            study.fail_running(error)
            raise
        study.write()
        best, all_trials = study.best, study.trials()
    if best is None:
        if not all_trials:
            raise BadInput(f"minutes: no trial was begun within {minutes:g}; allow more")
        raise FedheadError(f"{out}: {_without_result(all_trials, trials)}")
    chosen = with_values(base, dict(best.values))
    result = _train_finally(chosen, study, replace(compute, executor="auto")) if final else None
    return TuneResult(Path(out), chosen, best, search.direction, all_trials, result)


def _without_result(all_trials: list[TrialRecord], requested: int) -> str:
    """Describe why a search has no result."""
    failed = [trial for trial in all_trials if trial.state == "failed"]
    if not failed:
        return "no trial has ended with a result; give the same command again, which goes on with the study"
    left = f" and the search stopped before the other {requested - len(failed)}" if len(failed) < requested else ""
    first = f"trial {failed[0].number}: {failed[0].reason}"
    return f"all {len(failed)} trials failed{left} ({first}); search other values, or look at its trials.csv"


def _train_finally(recipe: Recipe, study: Study, compute: Compute) -> Row:
    """Train the best recipe once for all workers; rename the folder of an earlier best one."""
    place = study.folder / "final"
    with study.locked("final"):
        if RunFolder.holds_run(place) and RunFolder.open(place).recipe != recipe:
            free = (study.folder / f"final-before-{number}" for number in itertools.count(1))
            place.rename(next(path for path in free if not path.exists()))
        return execute(recipe, place, compute, resume=True)
