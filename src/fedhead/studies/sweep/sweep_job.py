"""Job of a sweep: runs that share one training, in this process or on a Ray worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedhead.core.system.failures import describe_error
from fedhead.engine.experiment.compute import Compute
from fedhead.executors.client.base import Executor
from fedhead.recipes.recipe import Recipe
from fedhead.studies.ray_engine import for_workers, found_from_here
from fedhead.studies.run_transfer import Files, place, read_files
from fedhead.studies.sweep.ray_runs import run_streaming
from fedhead.studies.sweep.sweep_runs import is_finished, run_alike


@dataclass
class SweepJob:
    """Runs of a sweep that share one training, each in its own folder.

    Args:
        runs: Recipes by run folder.
        names: Display names by run folder.
        out: Folder of the sweep.
        compute: Device, executor and precision.
    """

    runs: Mapping[Path, Recipe]
    names: Mapping[Path, str]
    out: Path
    compute: Compute
    _failures: dict[str, str] = field(default_factory=dict)  # reported by a Ray worker

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

    # -- on a Ray worker ------------------------------------------------------------------------------
    @property
    def worker(self) -> Any:
        """Function that a worker runs."""
        return run_streaming

    def arguments(self, ray: Any, number: int) -> tuple[Any, ...]:
        """Return the worker's arguments: the recipes and the current contents of their folders."""
        paths = {path.relative_to(self.out).as_posix(): path for path in self.runs}
        recipes = {name: found_from_here(self.runs[path]) for name, path in paths.items()}
        contents = {name: read_files(path) for name, path in paths.items()}
        job = ray.get_runtime_context().get_job_id()
        return f"fedhead-{job}-{number}", recipes, contents, for_workers(self.compute)

    def receive(self, item: tuple[dict[str, Files], dict[str, str]]) -> None:
        """Write changed files into the sweep's folder."""
        changed, failures = item
        for name, files in changed.items():
            place(files, self.out / name)
        self._failures |= {self.names[self.out / name]: reason for name, reason in failures.items()}

    def result(self, error: BaseException | str | None) -> dict[str, str]:
        """Return the reasons of failed runs; after an error, that error for all unfinished runs."""
        if error is None:
            return self._failures
        reason = error if isinstance(error, str) else describe_error(error)
        return self._failures | {self.names[path]: reason for path in self.runs if not is_finished(path)}
