"""Jobs of a queue: runs that share one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import Diverged
from fedhead.core.system.failures import describe_error, raise_if_fatal
from fedhead.engine.experiment.compute import Compute
from fedhead.executors.client.base import Executor
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CONFIG, DamagedRun
from fedhead.studies.reuse_training import fork, trained
from fedhead.studies.training import train, training_key


@dataclass
class RunJob:
    """Runs that share one training, each in its own folder.

    Args:
        runs: Recipes by run folder.
        names: Display names by run folder.
        compute: Device, executor and precision.
    """

    runs: Mapping[Path, Recipe]
    names: Mapping[Path, str]
    compute: Compute

    @property
    def recipe(self) -> Recipe:
        """Recipe of the first run."""
        return next(iter(self.runs.values()))

    @property
    def name(self) -> str:
        """Name of the first run."""
        return self.names[next(iter(self.runs))]

    def unfinished(self) -> list[str]:
        """Return the names of the unfinished runs."""
        return [self.names[path] for path in self.runs if not is_finished(path)]

    def run(self, executor: Executor | None = None) -> dict[str, str]:
        """Run the unfinished runs, with the given executor if any, and return the reasons of failures."""
        compute = self.compute if executor is None else replace(self.compute, executor=executor)
        return {self.names[path]: reason for path, reason in run_alike(self.runs, compute).items()}


def trainings(runs: Mapping[Path, Recipe]) -> list[dict[Path, Recipe]]:
    """Group runs that differ only in their stages."""
    alike: dict[str, dict[Path, Recipe]] = {}
    for path, recipe in runs.items():
        alike.setdefault(training_key(recipe), {})[path] = recipe
    return list(alike.values())


def run_alike(runs: Mapping[Path, Recipe], compute: Compute) -> dict[Path, str]:
    """Run the unfinished ones of runs that share one training.

    Args:
        runs: Recipes by run folder.
        compute: Device, executor and precision.

    Returns:
        Reasons of failed runs, by run folder; all others are finished.

    Raises:
        OSError: Or another error of a full or broken disk, which would affect all runs.
    """
    failures: dict[Path, str] = {}
    for path, recipe in runs.items():
        try:
            if not (path / CONFIG).exists() and (source := trained(runs)) is not None:
                fork(source, path, recipe)
            train(path, recipe, compute)
        except Exception as error:  # user code may raise anything
            raise_if_fatal(error)
            failures[path] = describe_error(error)
            if isinstance(error, Diverged) and trained(runs) is None:  # they share this training
                return {other: failures.get(other, failures[path]) for other in runs if not is_finished(other)}
    return failures


def is_finished(path: Path) -> bool:
    """Return whether a folder holds a finished run with readable results."""
    return result_of(path) is not None


def result_of(path: Path) -> dict[str, Any] | None:
    """Return a run's final results; None if there are none or the folder is damaged."""
    try:
        return RunFolder.open(path).result() if (path / CONFIG).exists() else None
    except DamagedRun:
        return None
