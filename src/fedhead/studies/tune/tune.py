"""Tuning: search for the settings of a recipe on validation samples, and train the best one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.engine.experiment.compute import Compute
from fedhead.metrics.records import Row
from fedhead.recipes.recipe import Recipe, load
from fedhead.recipes.search_space import read_space, with_settings, with_values
from fedhead.runs.run import check_compute, execute
from fedhead.runs.run_folder import RunFolder
from fedhead.studies.engines import make_engine
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.tune.study import MOST_SEED, Study
from fedhead.studies.tune.trial_training import VALIDATION, Direction, TrialTraining
from fedhead.studies.tune.trials import TrialRecord


@dataclass(frozen=True)
class TuneResult:
    """What a search has found.

    Args:
        folder: The study's folder.
        recipe: The best setting; `best.yaml` in the folder holds the same.
        best: The trial that reached the best value, the first of several.
        direction: Whether high or low values are good, `maximize` or `minimize`.
        trials: All trials.
        final: Results of the final training on all training samples, tested on the test samples; None: there was none.
    """

    folder: Path
    recipe: Recipe
    best: TrialRecord
    direction: Direction
    trials: list[TrialRecord]
    final: Row | None = None

    @property
    def value(self) -> float:
        """What the best setting reached on validation samples."""
        assert self.best.value is not None, "of a complete trial"
        return self.best.value

    @property
    def failed(self) -> list[TrialRecord]:
        """The trials that failed, without those in whose place another was tried."""
        return [one for one in self.trials if one.state == "failed"]


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
    settings: Compute | None = None,
    engine: Literal["local", "ray"] = "local",
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    on_trial: Callable[[TrialRecord], None] = lambda trial: None,
) -> TuneResult:
    """Search for the settings of a recipe that are best on validation samples.

    Test samples are never read by the search: a share of each client's training samples is held back and tested on
    (the protocol of CCVR), and given back in the final training. The study lies in an SQLite file in `out`; the same
    call resumes one that was stopped, and joins one that another process works on.

    Args:
        recipe: A recipe, its built-in name, or its file.
        *assignments: `key=value`, or what is searched: `key=log(1e-4, 1e-1)`, `key=uniform(0, 1)`, `key=int(1, 10)`,
            `key=choice(a, b)`.
        out: The study's folder.
        trials: How many trials the study is to have, of all processes together.
        objective: `accuracy` (of the global model), `personal` (the mean over clients of their own models), `loss`,
            `personal_loss`, or a metric.
        sampler: `tpe`, `gp` (a Gaussian process) or `random`.
        pruner: Which trials end early, by what they reach in a round: those below the `median` of the others, those
            that successive `halving` leaves out, or `none`.
        validation: Share of each client's training samples that is held back; None: the recipe's, or 0.15. All are
            given back in the final training, but for those that the recipe holds back for its callbacks.
        allow_changed_code: Add trials also to those of an older version of your own code.
        minutes: Begin no trial after so many minutes.
        final: Train the best setting on all training samples, in the folder `final`.
        seed: Seed of the sampler.
        settings: Device, precision and data folder.
        engine: "local" trains in this process, "ray" on the machines of a Ray cluster.
        cpus_per_worker: With Ray: the CPUs that a trial gets.
        gpus_per_worker: With Ray: the GPUs, or the share of one.
        on_trial: Called with each trial that has ended here.

    Returns:
        The best setting, and all trials.

    Raises:
        BadInput: Something can't be used, nothing is searched, or the folder holds another study, or one of an older
            version of your own code.
        FedheadError: No trial has a result: all have failed, or ten have and none was better.
    """
    settings = settings or Compute()
    settings = replace(settings, allow_changed_code=allow_changed_code or settings.allow_changed_code)
    if engine not in ("local", "ray"):
        raise BadInput(f"engine {engine!r}: give 'local' or 'ray'")
    trial_engine = make_engine(engine, cpus_per_worker, gpus_per_worker, "worker")
    check("trials", trials, Annotated[int, AtLeast(1)])
    budget = TimeBudget(minutes)
    check("seed", seed, Annotated[int, AtLeast(0), AtMost(MOST_SEED)])
    space, others = read_space(assignments)
    base = with_settings(recipe if isinstance(recipe, Recipe) else load(recipe), others)
    # here and below: else each trial would fail for the same reason
    check_compute(settings, base.folders, trial_engine.device(settings))
    if not space:
        raise BadInput("nothing is searched: give a range to at least one key, such as lr=log(1e-4, 1e-1)")
    if base.seeds:
        raise BadInput("seeds: a trial trains one seed; give seed=0 in place of the list")
    asked = next(one for one in (validation, base.validation, VALIDATION) if one is not None)
    share = check("validation", asked, Annotated[float, Above(0), Below(1)])
    if not base.callbacks:  # the samples are given back; callbacks would need them in the final training too
        base = replace(base, validation=None)
    search = TrialTraining.make(base, space, objective, share, settings)
    study = Study(
        Path(out), search, trials=trials, budget=budget, on_trial=on_trial, sampler=sampler, pruner=pruner, seed=seed
    )
    with closing(study):
        study.check_code(final=final, allow=settings.allow_changed_code)
        try:
            trial_engine.run(study)
            while study.is_running and not budget.exhausted:  # in other processes, or lost with one
                time.sleep(1)
                trial_engine.run(study)
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
    result = _train_finally(chosen, study, replace(settings, executor="auto")) if final else None
    return TuneResult(Path(out), chosen, best, search.direction, all_trials, result)


def _without_result(all_trials: list[TrialRecord], asked: int) -> str:
    """Say why a search has found nothing."""
    failed = [one for one in all_trials if one.state == "failed"]
    if not failed:
        return "no trial has ended with a result; give the same command again, which goes on with the study"
    left = f" and the search stopped before the other {asked - len(failed)}" if len(failed) < asked else ""
    first = f"trial {failed[0].number}: {failed[0].reason}"
    return f"all {len(failed)} trials failed{left} ({first}); search other values, or look at its trials.csv"


def _train_finally(recipe: Recipe, study: Study, settings: Compute) -> Row:
    """Train the best setting, once for all workers; what was the best before keeps its run in another folder."""
    place = study.folder / "final"
    with study.locked("final"):
        if RunFolder.holds_run(place) and RunFolder.open(place).recipe != recipe:
            free = (study.folder / f"final-before-{number}" for number in itertools.count(1))
            place.rename(next(path for path in free if not path.exists()))
        return execute(recipe, place, settings, resume=True)
