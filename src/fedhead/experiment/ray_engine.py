"""Sweeps over a Ray cluster: each bundle of runs is a task, and its run folders are streamed back as they grow.

A worker trains in a folder on the machine where it runs and sends what has changed there about once a second, so
that the machines need no common disk. When a worker is lost, its runs are begun again elsewhere from the state that
the sweep's folder has of them.
"""

from __future__ import annotations

import importlib
import os
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedhead.core.errors import BadInput
from fedhead.experiment.ray_worker import run_streaming
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.run import Settings
from fedhead.experiment.run_transfer import place, read_files
from fedhead.experiment.sweep import BundleQueue
from fedhead.experiment.sweep_runs import Bundle, describe_error, is_finished

_LOSSES = 3  # how often a bundle is begun again after its worker was lost


@dataclass
class _Task:
    """A bundle that a worker has."""

    bundle: Bundle
    number: int
    begin: float = field(default_factory=time.perf_counter)
    losses: int = 0
    failures: dict[Path, str] = field(default_factory=dict)


class RayEngine:
    """Runs bundles as tasks of a Ray cluster.

    It is the cluster of the environment variable RAY_ADDRESS, else one that runs on this machine, else a new one of
    this machine alone.

    Args:
        cpus: CPUs that a bundle gets.
        gpus: GPUs that it gets; 0.5 lets two share one.

    Raises:
        BadInput: Ray is not installed.
    """

    def __init__(self, cpus: float = 1, gpus: float = 0):
        self.cpus, self.gpus = cpus, gpus
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise BadInput("--engine ray needs Ray: pip install 'fedhead[ray]'") from error

    def device(self, settings: Settings) -> torch.device:
        """Return where runs will train: on the workers, not on this machine."""
        if settings.device == "cuda" and not self.gpus:
            raise BadInput("--device cuda: with Ray a cell has the GPUs that it is given; add --gpus-per-cell 1")
        asked = settings.device if settings.device != "auto" else "cuda" if self.gpus else "cpu"
        return torch.device(asked)

    def run(self, queue: BundleQueue, out: Path, settings: Settings, together: bool | None) -> None:
        """Run bundles until the queue has none, as many at once as the cluster has room for."""
        ray = self._ray
        ours = not ray.is_initialized()
        if ours:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of how Ray hides GPUs, which is as it is wanted here
                ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        try:
            self._run(queue, out, replace(settings, data=settings.data or os.environ.get("FEDHEAD_DATA")), together)
        finally:
            if ours:
                ray.shutdown()

    def _run(self, queue: BundleQueue, out: Path, settings: Settings, together: bool | None) -> None:
        ray, errors = self._ray, self._ray.exceptions
        remote = ray.remote(run_streaming).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0, num_returns="streaming"
        )
        job, slots = ray.get_runtime_context().get_job_id(), self._slots()
        running: dict[Any, _Task] = {}
        begun = 0

        def submit(task: _Task) -> None:
            paths = {path.relative_to(out).as_posix(): path for path in task.bundle}
            recipes = {name: _found_from_here(task.bundle[path]) for name, path in paths.items()}
            held = {name: read_files(path) for name, path in paths.items()}
            running[remote.remote(f"fedhead-{job}-{task.number}", recipes, held, together, settings)] = task

        try:
            while True:
                while len(running) < slots and (bundle := queue.next()) is not None:
                    begun += 1
                    submit(_Task(bundle, begun))
                if not running:
                    return
                stream = ray.wait(list(running), num_returns=1)[0][0]
                task = running[stream]
                try:
                    changed, failures = ray.get(next(stream))
                    for name, files in changed.items():
                        place(files, out / name)
                    task.failures |= {out / name: reason for name, reason in failures.items()}
                except StopIteration:
                    del running[stream]
                    queue.ended(task.bundle, time.perf_counter() - task.begin, task.failures)
                except errors.RayTaskError as error:  # the task itself failed, such as on a full disk
                    del running[stream]
                    self._give_up(task, queue, describe_error(error.cause or error))
                except errors.RayError as error:  # its worker or machine is gone
                    del running[stream]
                    task.losses += 1
                    if task.losses > _LOSSES:
                        self._give_up(task, queue, f"its worker was lost {task.losses} times, {type(error).__name__}")
                    else:
                        queue.log(f"a worker was lost ({type(error).__name__}): its runs go on from their checkpoints")
                        submit(task)
        finally:
            for stream in running:
                ray.cancel(stream, force=True)

    def _slots(self) -> int:
        """Return how many bundles the cluster has room for."""
        there = self._ray.cluster_resources()
        room = []
        for kind, needed, option in (("CPU", self.cpus, "--cpus-per-cell"), ("GPU", self.gpus, "--gpus-per-cell")):
            if needed and there.get(kind, 0) < needed:
                raise BadInput(f"{option} {needed:g}: the Ray cluster has {there.get(kind, 0):g} {kind}s in all")
            room += [int(there[kind] / needed)] if needed else []
        return max(1, min(room, default=1))

    @staticmethod
    def _give_up(task: _Task, queue: BundleQueue, reason: str) -> None:
        failures = {path: reason for path in task.bundle if not is_finished(path)}
        queue.ended(task.bundle, time.perf_counter() - task.begin, task.failures | failures)


def _found_from_here(recipe: Recipe) -> Recipe:
    """Return a recipe whose files are looked for in this process's working directory too."""
    return replace(recipe, folders=(*recipe.folders, Path.cwd()))
