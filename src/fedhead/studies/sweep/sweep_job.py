"""Job of a sweep: runs that share one training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fedhead.engine.experiment.compute import Compute
from fedhead.executors.client.base import Executor
from fedhead.recipes.recipe import Recipe
from fedhead.studies.sweep.sweep_runs import is_finished, run_alike


@dataclass
class SweepJob:
    """Runs of a sweep that share one training, each in its own folder.

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

    def unfinished(self) -> int:
        """Return the number of unfinished runs."""
        return sum(not is_finished(path) for path in self.runs)

    def describe(self) -> str:
        """Return the names of the unfinished runs."""
        names = [self.names[path] for path in self.runs if not is_finished(path)]
        suffix = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return "; ".join(names[:2]) + suffix

    def run(self, executor: Executor | None = None) -> dict[str, str]:
        """Run the unfinished runs, with the given executor if any, and return the reasons of failures."""
        compute = self.compute if executor is None else replace(self.compute, executor=executor)
        return {self.names[path]: reason for path, reason in run_alike(self.runs, compute).items()}
