"""Tuning: search for the numbers of a recipe, several trials side by side in one stack, without test samples."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from fedhead.core.errors import BadInput, Diverged, unknown
from fedhead.core.parameters import check
from fedhead.core.ranges import Above, AtLeast, Below
from fedhead.data.federation import Federation
from fedhead.engine import metric_registry
from fedhead.engine.metrics import Row
from fedhead.engine.rounds import FinishedRun, Snapshot
from fedhead.executors import select
from fedhead.executors.job import Executor
from fedhead.executors.multi_run import run_together
from fedhead.experiment.data import Inputs, is_path, search_federation
from fedhead.experiment.experiment import Experiment
from fedhead.experiment.recipe import Recipe, load
from fedhead.experiment.run import Settings, execute, threads_for
from fedhead.experiment.search_space import Dimension, read_space, with_values
from fedhead.experiment.study import Study
from fedhead.experiment.time_budget import TimeBudget
from fedhead.experiment.trials import TrialRecord

Direction = Literal["maximize", "minimize"]
TOGETHER = 8  # trials side by side by default, where a stack is fastest
VALIDATION = 0.15  # share of each client's training samples, as in the experiments of CCVR
# Objectives that every run has, by their name in a round's record, and which values are good.
OBJECTIVES: Mapping[str, tuple[str, Direction]] = {
    "accuracy": ("accuracy", "maximize"),
    "loss": ("test_loss", "minimize"),
    "personal": ("personal", "maximize"),
    "personal_loss": ("personal_loss", "minimize"),
}
# What decides the data that a trial trains on.
_DATA_KEYS = (
    *("dataset", "objective", "partition", "clients", "augment", "normalize", "layout", "size", "resize", "encode"),
    *("missing", "test", "client_test", "public", "public_samples", "subset", "seed", "partition_seed"),
)


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


def tune(
    recipe: str | Path | Recipe,
    *assignments: str,
    out: str | Path,
    trials: int = 20,
    objective: str = "accuracy",
    direction: Direction | None = None,
    sampler: str = "tpe",
    pruner: str = "median",
    validation: float | None = None,
    together: int | None = None,
    minutes: float | None = None,
    final: bool = False,
    seed: int = 0,
    settings: Settings | None = None,
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
        direction: Whether high or low values are good; None: as the objective says.
        sampler: `tpe`, `gp` (a Gaussian process) or `random`.
        pruner: Which trials end early, by what they reach in a round: those below the `median` of the others, those
            that successive `halving` leaves out, or `none`.
        validation: Share of each client's training samples that is held back; None: the recipe's, or 0.15.
        together: How many trials train side by side; None: 8 where a stack is fastest, else 1.
        minutes: Begin no trial after so many minutes.
        final: Train the best setting on all training samples, in the folder `final`.
        seed: Seed of the sampler.
        settings: Device, precision and data folder.
        on_trial: Called with each trial that has ended here.

    Returns:
        The best setting, and all trials.

    Raises:
        BadInput: Something can't be used, nothing is searched, or the folder holds another study.
        Diverged: No trial has a result.
    """
    settings = settings or Settings()
    check("trials", trials, Annotated[int, AtLeast(1)])
    check("together", together, Annotated[int, AtLeast(1)] | None)
    check("minutes", minutes, Annotated[float, Above(0)] | None)
    space, others = read_space(assignments)
    if not space:
        raise BadInput("nothing is searched: give a range to at least one key, such as lr=log(1e-4, 1e-1)")
    base = (recipe if isinstance(recipe, Recipe) else load(recipe)).override(others)
    if base.seeds:
        raise BadInput("seeds: a trial trains one seed; give seed=0 in place of the list")
    share = check("validation", validation or base.validation or VALIDATION, Annotated[float, Above(0), Below(1)])
    search = _Search.make(base, space, objective, share, settings)
    direction = direction or search.direction
    study = Study(
        Path(out),
        base,
        space,
        objective=objective,
        direction=direction,
        sampler=sampler,
        pruner=pruner,
        seed=seed,
        share=share,
    )
    with closing(study):
        budget, width = TimeBudget(minutes), together or search.width()
        while not budget.exhausted and (batch := study.ask(width, trials)):
            search.run(study, batch)
            study.write()
            records = {one.number: one for one in study.trials()}
            for trial in batch:
                on_trial(records[trial.number])
        study.write()
        best, all_trials = study.best, study.trials()
    if best is None:
        raise Diverged(f"{out}: no trial has a result; search smaller learning rates, or look at its trials.csv")
    chosen = with_values(base, dict(best.values))
    result = execute(chosen, Path(out) / "final", replace(settings, executor="auto"), resume=True) if final else None
    return TuneResult(Path(out), chosen, best, direction, all_trials, result)


def direction_of(objective: str, recipe: Recipe) -> Direction:
    """Return whether high or low values of an objective are good.

    Args:
        objective: One of `OBJECTIVES`, or a metric.
        recipe: Whose folders and objective decide what a metric's name means.

    Raises:
        BadInput: If there is no such metric.

    >>> direction_of("personal_loss", Recipe()), direction_of("f1", Recipe())
    ('minimize', 'maximize')
    """
    if objective in OBJECTIVES:
        return OBJECTIVES[objective][1]
    found = metric_registry.find([objective], recipe.folders, recipe.objective or "multiclass")
    if objective not in found:
        raise unknown("objective", objective, [*OBJECTIVES, *found])
    return "minimize" if found[objective].better == "min" else "maximize"


class _Pruned(Exception):
    """A trial ends here: stages would not change that."""


@dataclass
class _Search:
    """How the trials of a study are trained and what is measured of them."""

    recipe: Recipe
    objective: str
    direction: Direction
    share: float
    settings: Settings
    data: dict[str, Federation]  # by what decides it

    @classmethod
    def make(
        cls, recipe: Recipe, space: Sequence[Dimension], objective: str, share: float, settings: Settings
    ) -> _Search:
        """Check what is searched: both ends of each range, and every choice."""
        if objective not in OBJECTIVES and objective not in recipe.metrics:
            recipe = replace(recipe, metrics=(*recipe.metrics, objective))
        made = cls(recipe, objective, direction_of(objective, recipe), share, settings, {})
        first = {one.key: one.values[0] for one in space}
        for one in space:
            for value in one.values:
                try:
                    chosen = with_values(recipe, first | {one.key: value})
                    inputs = Inputs.of(made.federation(chosen)) if is_path(recipe.dataset) else None
                    Experiment.from_recipe(_in_search(chosen), inputs)
                except BadInput as error:
                    raise BadInput(f"{one}: {error}") from error
        return made

    def federation(self, recipe: Recipe) -> Federation:
        """Return the data of a trial, read once."""
        flat = recipe.flat()
        key = json.dumps([flat.get(name) for name in _DATA_KEYS] + [bool(recipe.callbacks)])
        if key not in self.data:
            personal = recipe.client_test is not None or self.objective.startswith("personal")
            self.data[key] = search_federation(recipe, self.share, self.settings.data, personal)
        return self.data[key]

    def experiment(self, values: dict[str, Any]) -> tuple[Experiment, Federation]:
        """Return a trial's experiment and its data."""
        recipe = with_values(self.recipe, values)
        federation = self.federation(recipe)
        made = Experiment.from_recipe(_in_search(recipe), Inputs.of(federation))
        made.check_data(federation)
        return made, federation

    def width(self) -> int:
        """Return how many trials train side by side: several where a stack is fastest."""
        if self.settings.executor not in ("auto", "stack"):
            return 1
        recipe = _in_search(self.recipe)
        federation = self.federation(self.recipe)
        simulation = Experiment.from_recipe(recipe, Inputs.of(federation)).simulation(
            federation, select.device(self.settings.device), self.settings.precision == "bf16"
        )
        chosen = select.executor(self.settings.executor, simulation, recipe.folders)
        return TOGETHER if chosen.takes_numbers else 1

    def run(self, study: Study, batch: Sequence[Any]) -> None:
        """Train trials, side by side if there are several, and tell the study what each has reached."""
        made = [self.experiment(study.values(trial)) for trial in batch]
        torch.set_num_threads(self.settings.threads or threads_for(made[0][0].models))

        def one(place: int) -> Callable[[Executor], None]:
            return lambda member: self._train(study, batch[place], *made[place], member)

        if len(batch) == 1:
            self._train(study, batch[0], *made[0], self.settings.executor)
            return
        experiment, federation = made[0]
        device = select.device(self.settings.device)
        simulation = experiment.simulation(federation, device, self.settings.precision == "bf16")
        compiled = device.type == "cuda" and select.pays_to_compile(simulation, len(batch))
        worker = select.by_name("stack", simulation, compile=compiled)
        run_together(worker, [one(place) for place in range(len(batch))], mix_numbers=True)

    def _train(
        self, study: Study, trial: Any, experiment: Experiment, federation: Federation, executor: str | Executor
    ) -> None:
        def after_round(now: Snapshot) -> None:
            value = self._value(now.history[-1])
            if value is not None:
                trial.report(value, now.round)
                if now.round < experiment.recipe.rounds and trial.should_prune():
                    raise _Pruned

        try:
            result = experiment.simulate(
                federation,
                executor=executor,
                device=self.settings.device,
                precision=self.settings.precision,
                on_round=after_round,
            )
        except Diverged as error:
            study.tell(trial, None, f"diverged: {error}")
            return
        except _Pruned:
            study.tell(trial, None, "others were better in this round")
            return
        value = self._final_value(result)
        if value is None:
            raise BadInput(
                f"objective {self.objective}: {experiment.method.name} has none here; tune for another one, such as "
                "personal or loss"
            )
        study.tell(trial, value)

    def _value(self, row: Row) -> float | None:
        name = OBJECTIVES[self.objective][0] if self.objective in OBJECTIVES else None
        found = row.get("metrics", {}).get(self.objective) if name is None else row.get(name)
        return None if found is None else float(found)

    def _final_value(self, result: FinishedRun) -> float | None:
        """Return the value after the last stage, or, without stages, after the rounds."""
        rows = [*result.rows, *result.stage_rows.values()]
        found = [value for row in rows if (value := self._value(row)) is not None]
        return found[-1] if found else None


def _in_search(recipe: Recipe) -> Recipe:
    """Return a recipe as trials train it: what its callbacks watch is there, and nothing is logged elsewhere."""
    return replace(recipe, validation=VALIDATION if recipe.callbacks else None, loggers=())
