"""How the trials of a study train: without test samples, several of them side by side in one stack."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

from fedhead.core.system.errors import BadInput, Diverged, unknown
from fedhead.data.federation.federation import Federation
from fedhead.engine.rounds.rounds import FinishedRun, Snapshot
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.executors.client.stack_errors import CannotStack
from fedhead.executors.joint.runs import run_together
from fedhead.metrics import registry
from fedhead.metrics.records import Row
from fedhead.recipes import components
from fedhead.recipes.experiment import BuiltModels, Experiment
from fedhead.recipes.recipe import DATA_KEYS, Recipe
from fedhead.recipes.recipe_data import Inputs, is_path, search_federation
from fedhead.recipes.search_space import Dimension, with_values
from fedhead.runs.failures import describe_error, raise_if_fatal
from fedhead.runs.run import Compute, threads_for
from fedhead.studies.tune.trials import Outcome

Direction = Literal["maximize", "minimize"]
Report = Callable[[int, int, float], bool]  # place of a trial, round, value -> whether the trial ends here
Ended = Callable[[int, Outcome], None]  # place of a trial, how it ended
CONCURRENT = 8  # trials side by side by default, where a stack is fastest
VALIDATION = 0.15  # share of each client's training samples, as in the experiments of CCVR
# Objectives that every run has, by their name in a round's record, and which values are good.
OBJECTIVES: Mapping[str, tuple[str, Direction]] = {
    "accuracy": ("accuracy", "maximize"),
    "loss": ("test_loss", "minimize"),
    "personal": ("personal", "maximize"),
    "personal_loss": ("personal_loss", "minimize"),
}


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
    try:
        found = registry.find([objective], recipe.folders, recipe.objective or "multiclass")
    except BadInput as error:
        raise BadInput(f"{error}; or {', '.join(OBJECTIVES)}") from error
    if objective not in found:
        raise unknown("objective", objective, [*OBJECTIVES, *found])
    return "minimize" if found[objective].better == "min" else "maximize"


class _Pruned(Exception):
    """A trial ends here: stages would not change that."""


class _SearchFault(Exception):
    """An error ends the search, not only the trial that met it."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error


@dataclass
class TrialTraining:
    """How the trials of a study are trained and what is measured of them."""

    recipe: Recipe
    objective: str
    direction: Direction
    share: float
    settings: Compute
    of_clients: bool  # whether the objective is made of the clients' own results
    stop_on_error: bool = False  # whether an error in one trial ends the search
    objective_varies: bool = False  # whether some trials may have the objective and others not
    data: dict[str, Federation] = field(default_factory=dict)  # by what decides it
    models: BuiltModels = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        recipe: Recipe,
        space: Sequence[Dimension],
        objective: str,
        share: float,
        settings: Compute,
        stop_on_error: bool = False,
    ) -> TrialTraining:
        """Check what is searched: both ends of each range, and every choice."""
        if objective not in OBJECTIVES and objective not in recipe.metrics:
            recipe = replace(recipe, metrics=(*recipe.metrics, objective))
        direction, of_clients = direction_of(objective, recipe), False
        if objective not in OBJECTIVES:
            known = registry.find([objective], recipe.folders, recipe.objective or "multiclass")
            of_clients = known[objective].of_clients
        varies = any(one.key in ("method", "stages") for one in space)
        made = cls(recipe, objective, direction, share, settings, of_clients, stop_on_error, varies)
        first = {one.key: one.values[0] for one in space}
        for one in space:
            for value in one.values:
                try:
                    chosen = with_values(recipe, first | {one.key: value})
                    inputs = Inputs.of(made.federation(chosen)) if is_path(recipe.dataset) else None
                    Experiment.from_recipe(_in_search(chosen), inputs, made.models)
                except BadInput as error:
                    raise BadInput(f"{one}: {error}") from error
        return made

    def recipes(self, space: Sequence[Dimension]) -> list[Recipe]:
        """Return recipes of trials in which every choice is made once."""
        first = {one.key: one.values[0] for one in space}
        return [with_values(self.recipe, first | {one.key: value}) for one in space for value in one.values]

    def code(self, space: Sequence[Dimension]) -> list[dict[str, str]]:
        """Return where the user's own components come from, of all choices."""
        own = [entry for recipe in self.recipes(space) for entry in components.sources(recipe) if "file" in entry]
        return list({(entry["kind"], entry["name"]): entry for entry in own}.values())

    def federation(self, recipe: Recipe) -> Federation:
        """Return the data of a trial, read once."""
        flat = recipe.flat()
        key = json.dumps([flat.get(name) for name in (*DATA_KEYS, "seed", "partition_seed")] + [bool(recipe.callbacks)])
        if key not in self.data:
            personal = recipe.client_test is not None or self.objective.startswith("personal") or self.of_clients
            self.data[key] = search_federation(recipe, self.share, self.settings.data, personal)
        return self.data[key]

    def experiment(self, values: dict[str, Any]) -> tuple[Experiment, Federation]:
        """Return a trial's experiment and its data."""
        recipe = with_values(self.recipe, values)
        federation = self.federation(recipe)
        made = Experiment.from_recipe(_in_search(recipe), Inputs.of(federation), self.models)
        made.check_data(federation)
        return made, federation

    def width(self) -> int:
        """Return how many trials train side by side: several where a stack is fastest, of the recipe as it is."""
        if self.settings.executor not in ("auto", "stack"):
            return 1
        try:
            return self._width()
        except Exception as error:  # a user's own code may raise anything, perhaps for no value that is searched
            raise_if_fatal(error)
            return 1

    def _width(self) -> int:
        recipe = _in_search(self.recipe)
        federation = self.federation(self.recipe)
        simulation = Experiment.from_recipe(recipe, Inputs.of(federation), self.models).simulation(
            federation, select.device(self.settings.device), self.settings.precision == "bf16"
        )
        chosen = select.executor(self.settings.executor, simulation, recipe.folders)
        return CONCURRENT if chosen.mixes_hyperparameters else 1

    def run(self, chosen: Sequence[Mapping[str, Any]], report: Report, ended: Ended) -> None:
        """Train trials, side by side if there are several.

        Args:
            chosen: The values of each trial, by key.
            report: Called with a trial's place in `chosen`, the round and its value; returns whether the trial ends.
            ended: Called with a trial's place and how it ended. A trial that fails does not stop the others.

        Raises:
            OSError: Or another error that no other trial would survive, such as one of the study's file; with
                `stop_on_error` any error of a trial.
        """
        made: dict[int, tuple[Experiment, Federation]] = {}
        worker: str | Executor = self.settings.executor
        for place, values in enumerate(chosen):
            try:
                built = self.experiment(dict(values))
                if len(chosen) > 1 and not made:
                    worker = self._stack(*built, runs=len(chosen))
                made[place] = built
            except Exception as error:  # a user's own code may raise anything
                ended(place, self._failed(error))
        if not made:
            return
        torch.set_num_threads(self.settings.threads or threads_for(next(iter(made.values()))[0].models))

        def one(place: int) -> Callable[[str | Executor], None]:
            return lambda executor: ended(place, self._outcome(*made[place], executor, partial(report, place)))

        if isinstance(worker, Executor):
            run_together(worker, [one(place) for place in made], mix_hyperparameters=True)
        else:
            one(0)(worker)

    def _stack(self, experiment: Experiment, federation: Federation, runs: int) -> Executor:
        """Return what trains several trials, of which this is the first."""
        device = select.device(self.settings.device)
        simulation = experiment.simulation(federation, device, self.settings.precision == "bf16")
        return select.by_name("stack", simulation, self.settings.compile, runs=runs)

    def _outcome(
        self,
        experiment: Experiment,
        federation: Federation,
        executor: str | Executor,
        report: Callable[[int, float], bool],
    ) -> Outcome:
        """Train a trial, and return how it ended."""
        try:
            return self._train(experiment, federation, executor, report)
        except Diverged as error:
            return Outcome("failed", reason=f"diverged: {error}")
        except _Pruned:
            return Outcome("pruned", reason="others were better in this round")
        except _SearchFault as fault:
            raise fault.error from None
        except Exception as error:  # a user's own code may raise anything
            return self._failed(error)

    def _failed(self, error: Exception) -> Outcome:
        """Return that a trial failed by an error, or raise the error where it ends the search."""
        raise_if_fatal(error)
        if self.stop_on_error:
            raise error
        hint = "; trials side by side are a stack: give --concurrent-trials 1" if isinstance(error, CannotStack) else ""
        return Outcome("failed", reason=describe_error(error) + hint, retryable=True)

    def _train(
        self,
        experiment: Experiment,
        federation: Federation,
        executor: str | Executor,
        report: Callable[[int, float], bool],
    ) -> Outcome:
        def after_round(now: Snapshot) -> None:
            value = self._value(now.history[-1])
            if value is not None and math.isfinite(value):
                try:
                    ends = report(now.round, value)
                except Exception as error:  # of the study, not of this trial
                    raise _SearchFault(error) from error
                if ends and now.round < experiment.recipe.rounds:
                    raise _Pruned

        result = experiment.simulate(
            federation,
            executor=executor,
            device=self.settings.device,
            precision=self.settings.precision,
            compile=self.settings.compile,
            on_round=after_round,
        )
        value = self._final_value(result)
        if value is None:
            others = "accuracy or loss" if self.objective.startswith("personal") else "personal or personal_loss"
            lacking = BadInput(
                f"objective {self.objective}: {experiment.method.name} has none here; tune for another one, such as "
                f"{others}"
            )
            if self.objective_varies:
                raise lacking
            raise _SearchFault(lacking)
        if math.isfinite(value):
            return Outcome("complete", value)
        return Outcome("failed", reason=f"{self.objective} is {value}, which can't be compared")

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
    """Return a recipe as trials train it: the search's own share is held back, and nothing is logged elsewhere."""
    return replace(recipe, validation=recipe.validation if recipe.callbacks else None, loggers=())
