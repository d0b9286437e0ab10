"""Sweeps over a Ray cluster: each bundle of runs is a task, and its run folders are streamed back as they grow.

A worker trains in a folder on the machine where it runs and sends what has changed there about once a second, so
that the machines need no common disk. When a worker is lost, its runs are begun again elsewhere from the state that
the sweep's folder has of them.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedhead.runs.failures import describe_error
from fedhead.runs.run import Compute
from fedhead.runs.run_transfer import Files, place, read_files
from fedhead.studies.sweep.ray_cluster import RayCluster, found_from_here
from fedhead.studies.sweep.ray_worker import run_streaming
from fedhead.studies.sweep.sweep import BundleQueue
from fedhead.studies.sweep.sweep_runs import Bundle, is_finished


@dataclass
class _BundleTask:
    """A bundle that a worker has."""

    name: str
    bundle: Bundle
    queue: BundleQueue
    out: Path
    settings: Compute
    together: bool | None
    begin: float = field(default_factory=time.perf_counter)
    failures: dict[Path, str] = field(default_factory=dict)

    def arguments(self) -> tuple[Any, ...]:
        """Return what the worker needs: the recipes, and what their folders hold by now."""
        paths = {path.relative_to(self.out).as_posix(): path for path in self.bundle}
        recipes = {name: found_from_here(self.bundle[path]) for name, path in paths.items()}
        held = {name: read_files(path) for name, path in paths.items()}
        return self.name, recipes, held, self.together, self.settings

    def received(self, item: tuple[dict[str, Files], dict[str, str]]) -> None:
        """Put what has changed into the sweep's folder."""
        changed, failures = item
        for name, files in changed.items():
            place(files, self.out / name)
        self.failures |= {self.out / name: reason for name, reason in failures.items()}

    def ended(self) -> None:
        """Tell the queue."""
        self.queue.ended(self.bundle, time.perf_counter() - self.begin, self.failures)

    def failed(self, error: BaseException | str) -> None:
        """Tell the queue that what is not finished has failed."""
        reason = error if isinstance(error, str) else describe_error(error)
        self.failures |= {path: reason for path in self.bundle if not is_finished(path)}
        self.ended()

    def lost(self, error: BaseException) -> None:
        """Say so."""
        self.queue.log(f"a worker was lost ({type(error).__name__}): its runs go on from their checkpoints")


class RayEngine(RayCluster):
    """Runs bundles as tasks of a Ray cluster.

    Args:
        cpus: CPUs that a bundle gets.
        gpus: GPUs that it gets; 0.5 lets two share one.

    Raises:
        BadInput: Ray is not installed.
    """

    def __init__(self, cpus: float = 1, gpus: float = 0):
        super().__init__(cpus, gpus, "cell")

    def run(self, queue: BundleQueue, out: Path, settings: Compute, together: bool | None) -> None:
        """Run bundles until the queue has none, as many at once as the cluster has room for."""
        there = replace(settings, data=settings.data or os.environ.get("FEDHEAD_DATA"))
        with self.connected():
            job, numbers = self.ray.get_runtime_context().get_job_id(), itertools.count(1)

            def begin() -> _BundleTask | None:
                if (bundle := queue.next()) is None:
                    return None
                return _BundleTask(f"fedhead-{job}-{next(numbers)}", bundle, queue, out, there, together)

            self.run_tasks(run_streaming, begin)
