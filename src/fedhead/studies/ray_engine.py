"""Jobs as tasks of a Ray cluster: they stream their results and are retried when a worker is lost."""

from __future__ import annotations

import importlib
import itertools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import logger
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import Recipe
from fedhead.studies.queue import Queue, RemoteJob

_LOSSES = 3  # retries of a task after its worker was lost


class RayEngine:
    """Engine on a Ray cluster: that of the variable RAY_ADDRESS, else one on this machine, else a new one.

    Args:
        cpus: CPUs per job.
        gpus: GPUs per job; with 0.5 two jobs share one.
        per: Name of a job in options, such as "cell" in --cpus-per-cell.

    Raises:
        BadInput: Ray is not installed.
    """

    def __init__(self, cpus: float = 1, gpus: float = 0, per: str = "cell"):
        self.cpus, self.gpus, self.per = cpus, gpus, per
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise BadInput("--engine ray needs Ray: pip install 'fedhead[ray]'") from error

    def device(self, compute: Compute) -> torch.device:
        """Return the device type of the workers, which need not exist on this machine."""
        if compute.device == "cuda" and not self.gpus:
            raise BadInput(
                f"--device cuda: with Ray a {self.per} has the GPUs that it is given; add --gpus-per-{self.per} 1"
            )
        name = compute.device if compute.device != "auto" else "cuda" if self.gpus else "cpu"
        return torch.device(name)

    def run(self, queue: Queue[RemoteJob]) -> None:
        """Run jobs until the queue is empty, as many concurrently as the cluster has resources for."""
        with self._connected():
            self._run_tasks(queue)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Connect to a cluster, or start one, inside the block."""
        connecting = not self.ray.is_initialized()
        if connecting:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # about hidden GPUs, which is intended
                self.ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        try:
            yield
        finally:
            if connecting:
                self.ray.shutdown()

    def _run_tasks(self, queue: Queue[RemoteJob]) -> None:
        ray, errors = self.ray, self.ray.exceptions
        slots, numbers = self._slots(), itertools.count(1)
        running: dict[Any, tuple[RemoteJob, int, int]] = {}  # job, its number, lost workers
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_retries": 0, "num_returns": "streaming"}

        def start(job: RemoteJob, number: int, losses: int) -> None:
            task = ray.remote(job.worker).options(**options).remote(*job.arguments(ray, number))
            running[task] = job, number, losses

        try:
            while True:
                while len(running) < slots and (new := queue.next()) is not None:
                    start(new, next(numbers), 0)
                if not running:
                    return
                stream = ray.wait(list(running), num_returns=1)[0][0]
                job, number, losses = running[stream]
                try:
                    job.receive(ray.get(next(stream)))
                except StopIteration:
                    del running[stream]
                    queue.finish(job, job.result(None))
                except errors.RayTaskError as error:  # the task failed, such as on a full disk
                    del running[stream]
                    queue.finish(job, job.result(error.cause or error))
                except errors.RayError as error:  # the worker or its machine was lost
                    del running[stream]
                    if losses == _LOSSES:
                        reason = f"its worker was lost {losses + 1} times, {type(error).__name__}"
                        queue.finish(job, job.result(reason))
                    else:
                        logger.warning("a worker was lost (%s): another one takes over", type(error).__name__)
                        start(job, number, losses + 1)
        finally:
            for stream in running:
                ray.cancel(stream, force=True)

    def _slots(self) -> int:
        """Return the number of tasks that the cluster can run concurrently."""
        resources = self.ray.cluster_resources()
        room = []
        for kind, needed, option in (("CPU", self.cpus, "cpus"), ("GPU", self.gpus, "gpus")):
            if needed and resources.get(kind, 0) < needed:
                raise BadInput(
                    f"--{option}-per-{self.per} {needed:g}: the Ray cluster has {resources.get(kind, 0):g} {kind}s in "
                    "all"
                )
            room += [int(resources[kind] / needed)] if needed else []
        return max(1, min(room, default=1))


def found_from_here(recipe: Recipe) -> Recipe:
    """Return a recipe that also searches this process's working directory for files."""
    return replace(recipe, folders=(*recipe.folders, Path.cwd()))


def for_workers(compute: Compute) -> Compute:
    """Return the compute options with this process's data folder, if it has one."""
    return replace(compute, data=compute.data or os.environ.get("FEDHEAD_DATA"))
