"""Training of trials: without test samples, with cached data and models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from fedhead.core.system.errors import BadInput, Diverged, unknown
from fedhead.core.system.failures import describe_error, raise_if_fatal
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.experiment.experiment import Experiment, InputSpec
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.observer import FinishedRun, Observer, RoundFunction, Snapshot
from fedhead.engine.rounds.simulation import Simulation
from fedhead.metrics import registry
from fedhead.metrics.records import Row
from fedhead.recipes import components
from fedhead.recipes.experiment import BuiltModels, build_experiment
from fedhead.recipes.recipe import DATA_KEYS, Recipe
from fedhead.recipes.recipe_data import is_path, search_federation
from fedhead.recipes.search_space import Dimension, with_values
from fedhead.runs.run import threads_for
from fedhead.studies.tune.trials import Outcome

Direction = Literal["maximize", "minimize"]
Report = Callable[[int, float], bool]  # round, value -> whether the trial is pruned
VALIDATION = 0.15  # share of each client's training samples, as in the experiments of CCVR
# Objectives of every run: name in a round's record, and direction.
OBJECTIVES: Mapping[str, tuple[str, Direction]] = {
    "accuracy": ("accuracy", "maximize"),
    "loss": ("test_loss", "minimize"),
    "personal": ("personal", "maximize"),
    "personal_loss": ("personal_loss", "minimize"),
}


def find_objective(objective: str, recipe: Recipe) -> tuple[Direction, bool]:
    """Return the direction of an objective, and whether it is computed from the clients' results.

    Args:
        objective: One of `OBJECTIVES`, or a metric.
        recipe: Recipe whose search path and objective determine the metrics.

    Raises:
        BadInput: If there is no such metric.

    >>> find_objective("personal_loss", Recipe()), find_objective("f1", Recipe())
    (('minimize', False), ('maximize', False))
    """
    if objective in OBJECTIVES:
        return OBJECTIVES[objective][1], False
    try:
        metrics = registry.find([objective], recipe.folders, recipe.objective or "multiclass")
    except BadInput as error:
        raise BadInput(f"{error}; or {', '.join(OBJECTIVES)}") from error
    if objective not in metrics:
        raise unknown("objective", objective, [*OBJECTIVES, *metrics])
    return "minimize" if metrics[objective].better == "min" else "maximize", metrics[objective].of_clients


class _Pruned(Exception):
    """Signal that a trial is pruned and its stages are skipped."""


class _SearchFault(Exception):
    """Error that ends the search, not only the trial."""

    def __init__(self, error: Exception):
        super().__init__()
        self.error = error


class _ChosenExecutor(Observer):
    """Cache of the executor that `auto` selected, so that it is timed once and not in each trial.

    Args:
        executors: Cached executors.
        key: Cache key of this trial.
    """

    def __init__(self, executors: dict[str, str], key: str):
        self._executors, self._key = executors, key

    def start(self, name: str, resume: Snapshot | None) -> None:
        """Cache the executor."""
        self._executors[self._key] = name


@dataclass
class TrialTraining:
    """Training and measurement of the trials of a study."""

    recipe: Recipe
    space: tuple[Dimension, ...]
    objective: str
    direction: Direction
    share: float
    compute: Compute
    of_clients: bool  # whether the objective is computed from the clients' results
    data: dict[str, Federation] = field(default_factory=dict)  # cache by recipe keys
    models: BuiltModels = field(default_factory=dict)
    executors: dict[str, str] = field(default_factory=dict)  # fastest executors by `_speed_key`

    @classmethod
    def make(
        cls,
        recipe: Recipe,
        space: Sequence[Dimension],
        objective: str,
        share: float,
        compute: Compute,
    ) -> TrialTraining:
        """Create the training and check both ends of each range, and every choice."""
        if objective not in OBJECTIVES and objective not in recipe.metrics:
            recipe = replace(recipe, metrics=(*recipe.metrics, objective))
        direction, of_clients = find_objective(objective, recipe)
        training = cls(recipe, tuple(space), objective, direction, share, compute, of_clients)
        for dimension, chosen in training._extremes():
            try:
                inputs = InputSpec.of(training.federation(chosen)) if is_path(recipe.dataset) else None
                build_experiment(_in_search(chosen), inputs, built=training.models)
            except BadInput as error:
                raise BadInput(f"{dimension}: {error}") from error
        return training

    def _extremes(self) -> list[tuple[Dimension, Recipe]]:
        """Return recipes with both ends of each range, and with every choice."""
        first = {dimension.key: dimension.values[0] for dimension in self.space}
        return [
            (dimension, with_values(self.recipe, first | {dimension.key: value}))
            for dimension in self.space
            for value in dimension.values
        ]

    def code(self) -> list[dict[str, str]]:
        """Return the sources of the user's components, of all choices."""
        sources = [entry for _, recipe in self._extremes() for entry in components.sources(recipe)]
        entries = [entry for entry in sources if "file" in entry]
        return list({(entry["kind"], entry["name"]): entry for entry in entries}.values())

    def federation(self, recipe: Recipe) -> Federation:
        """Return the data of a trial, cached."""
        flat = recipe.flat()
        key = json.dumps([flat.get(name) for name in (*DATA_KEYS, "seed", "partition_seed")] + [bool(recipe.callbacks)])
        if key not in self.data:
            personal = recipe.client_test is not None or self.objective.startswith("personal") or self.of_clients
            self.data[key] = search_federation(recipe, self.share, self.compute.data_dir, personal)
        return self.data[key]

    def experiment(self, values: dict[str, Any]) -> tuple[Experiment, Federation]:
        """Return a trial's experiment and its data."""
        recipe = with_values(self.recipe, values)
        federation = self.federation(recipe)
        trial = build_experiment(_in_search(recipe), InputSpec.of(federation), built=self.models)
        trial.check_data(federation)
        return trial, federation

    def run(self, values: Mapping[str, Any], report: Report) -> Outcome:
        """Train a trial and return its outcome.

        Args:
            values: Values of the trial, by key.
            report: Called with each round and its value; returns whether the trial is pruned.

        Raises:
            Exception: If it would fail all trials, such as a full disk or an error of the study's file. Other errors
                fail only this trial.
        """
        try:
            key = _speed_key(with_values(self.recipe, dict(values)))
            return self._train(*self.experiment(dict(values)), key, report)
        except Diverged as error:
            return Outcome("failed", reason=f"diverged: {error}")
        except _Pruned:
            return Outcome("pruned", reason="others were better in this round")
        except _SearchFault as fault:
            raise fault.error from None
        except Exception as error:  # user code may raise anything
            raise_if_fatal(error)
            return Outcome("failed", reason=describe_error(error), retryable=True)

    def _train(self, experiment: Experiment, federation: Federation, key: str, report: Report) -> Outcome:
        def after_round(now: Snapshot) -> None:
            value = self._value(now.history[-1])
            if value is not None and math.isfinite(value):
                try:
                    ends = report(now.round, value)
                except Exception as error:  # an error of the study, not of this trial
                    raise _SearchFault(error) from error
                if ends and now.round < experiment.schedule.rounds:
                    raise _Pruned

        torch.set_num_threads(self.compute.threads or threads_for(experiment.models))
        executor = self.compute.executor
        if executor == "auto":
            executor = self.executors.get(key, executor)
        simulation = Simulation(experiment, federation, replace(self.compute, executor=executor))
        result = rounds.run(simulation, [_ChosenExecutor(self.executors, key), RoundFunction(after_round)])
        value = self._final_value(result)
        if value is None:
            others = "accuracy or loss" if self.objective.startswith("personal") else "personal or personal_loss"
            lacking = BadInput(
                f"objective {self.objective}: {experiment.method.name} has none here; tune for another one, such as "
                f"{others}"
            )
            if any(dimension.key in ("method", "stages") for dimension in self.space):  # other trials may have it
                raise lacking
            raise _SearchFault(lacking)
        if math.isfinite(value):
            return Outcome("complete", value)
        return Outcome("failed", reason=f"{self.objective} is {value}, which can't be compared")

    def _value(self, row: Row) -> float | None:
        name = OBJECTIVES[self.objective][0] if self.objective in OBJECTIVES else None
        value = row.get("metrics", {}).get(self.objective) if name is None else row.get(name)
        return None if value is None else float(value)

    def _final_value(self, result: FinishedRun) -> float | None:
        """Return the value after the last stage or, without stages, after the rounds."""
        rows = [*result.rows, *result.stage_rows.values()]
        values = [value for row in rows if (value := self._value(row)) is not None]
        return values[-1] if values else None


def _in_search(recipe: Recipe) -> Recipe:
    """Return the recipe of a trial: without loggers, and with validation samples only for callbacks."""
    return replace(recipe, validation=recipe.validation if recipe.callbacks else None, loggers=())


def _speed_key(recipe: Recipe) -> str:
    """Serialize the recipe keys that affect speed: all but floats such as a learning rate."""
    return json.dumps({key: value for key, value in recipe.flat().items() if not isinstance(value, float)})
