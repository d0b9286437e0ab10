"""Job of a sweep: runs that train alike, in this process or on a Ray worker."""

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
    """Runs of a sweep that train alike, each in its own folder.

    Args:
        runs: The runs by their folders.
        names: What runs are called, by their folders.
        out: The sweep's folder.
        settings: How and where to compute.
    """

    runs: Mapping[Path, Recipe]
    names: Mapping[Path, str]
    out: Path
    settings: Compute
    _failures: dict[str, str] = field(default_factory=dict)  # what a Ray worker has told

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first run."""
        return next(iter(self.runs.values()))

    def unfinished(self) -> int:
        """Return how many runs are not finished."""
        return sum(not is_finished(path) for path in self.runs)

    def describe(self) -> str:
        """Name the runs that are not finished."""
        names = [self.names[path] for path in self.runs if not is_finished(path)]
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        return "; ".join(names[:2]) + more

    def run(self, executor: Executor | None = None) -> dict[str, str]:
        """Run what is not finished, by this executor where one is given, and return why runs failed."""
        settings = self.settings if executor is None else replace(self.settings, executor=executor)
        return {self.names[path]: reason for path, reason in run_alike(self.runs, settings).items()}

    # -- on a Ray worker ------------------------------------------------------------------------------
    @property
    def worker(self) -> Any:
        """The function that a worker runs."""
        return run_streaming

    def arguments(self, ray: Any, number: int) -> tuple[Any, ...]:
        """Return what the worker needs: the recipes, and the present contents of their folders."""
        paths = {path.relative_to(self.out).as_posix(): path for path in self.runs}
        recipes = {name: found_from_here(self.runs[path]) for name, path in paths.items()}
        contents = {name: read_files(path) for name, path in paths.items()}
        job = ray.get_runtime_context().get_job_id()
        return f"fedhead-{job}-{number}", recipes, contents, for_workers(self.settings)

    def receive(self, item: tuple[dict[str, Files], dict[str, str]]) -> None:
        """Put changed files into the sweep's folder."""
        changed, failures = item
        for name, files in changed.items():
            place(files, self.out / name)
        self._failures |= {self.names[self.out / name]: reason for name, reason in failures.items()}

    def result(self, error: BaseException | str | None) -> dict[str, str]:
        """Return why runs failed; after an error, all that are not finished."""
        if error is None:
            return self._failures
        reason = error if isinstance(error, str) else describe_error(error)
        return self._failures | {self.names[path]: reason for path in self.runs if not is_finished(path)}
