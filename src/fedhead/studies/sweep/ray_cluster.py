"""Tasks of a Ray cluster that stream what they find, and are begun again when their worker is lost."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import Compute

_LOSSES = 3  # how often a task is begun again after its worker was lost


class RayTask(Protocol):
    """Work for one worker."""

    def arguments(self) -> tuple[Any, ...]:
        """Return what the worker's function is called with, each time that the task is begun."""
        ...

    def received(self, item: Any) -> None:
        """Take what the worker has sent."""
        ...

    def ended(self) -> None:
        """Take note that the worker is done."""
        ...

    def failed(self, error: BaseException | str) -> None:
        """Take note that the task raised an error, or has lost too many workers."""
        ...

    def lost(self, error: BaseException) -> None:
        """Take note that the worker is gone; the task is begun again."""
        ...


class RayCluster:
    """The cluster of the environment variable RAY_ADDRESS, else one that runs on this machine, else a new one.

    Args:
        cpus: CPUs that a task gets.
        gpus: GPUs that it gets; 0.5 lets two share one.
        per: What a task is in the names of the options: --cpus-per-cell.

    Raises:
        BadInput: Ray is not installed.
    """

    def __init__(self, cpus: float, gpus: float, per: str):
        self.cpus, self.gpus, self.per = cpus, gpus, per
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise BadInput("--engine ray needs Ray: pip install 'fedhead[ray]'") from error

    def device(self, settings: Compute) -> torch.device:
        """Return where runs will train: on the workers, not on this machine."""
        if settings.device == "cuda" and not self.gpus:
            raise BadInput(
                f"--device cuda: with Ray a {self.per} has the GPUs that it is given; add --gpus-per-{self.per} 1"
            )
        asked = settings.device if settings.device != "auto" else "cuda" if self.gpus else "cpu"
        return torch.device(asked)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connect to the cluster, or start one, for the time of a block."""
        ours = not self.ray.is_initialized()
        if ours:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of how Ray hides GPUs, which is as it is wanted here
                self.ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        try:
            yield
        finally:
            if ours:
                self.ray.shutdown()

    def run_tasks(self, function: Callable[..., Iterator[Any]], begin: Callable[[], RayTask | None]) -> None:
        """Run tasks, as many at once as the cluster has room for, until there are no more.

        Args:
            function: What a worker does: a generator of what it sends.
            begin: Returns the next task; None where there is none for now.
        """
        ray, errors = self.ray, self.ray.exceptions
        remote = ray.remote(function).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0, num_returns="streaming"
        )
        slots = self._slots()
        running: dict[Any, tuple[RayTask, int]] = {}  # with how often the worker was lost
        try:
            while True:
                while len(running) < slots and (new := begin()) is not None:
                    running[remote.remote(*new.arguments())] = new, 0
                if not running:
                    return
                stream = ray.wait(list(running), num_returns=1)[0][0]
                task, losses = running[stream]
                try:
                    task.received(ray.get(next(stream)))
                except StopIteration:
                    del running[stream]
                    task.ended()
                except errors.RayTaskError as error:  # the task itself failed, such as on a full disk
                    del running[stream]
                    task.failed(error.cause or error)
                except errors.RayError as error:  # its worker or machine is gone
                    del running[stream]
                    if losses == _LOSSES:
                        task.failed(f"its worker was lost {losses + 1} times, {type(error).__name__}")
                    else:
                        task.lost(error)
                        running[remote.remote(*task.arguments())] = task, losses + 1
        finally:
            for stream in running:
                ray.cancel(stream, force=True)

    def _slots(self) -> int:
        """Return how many tasks the cluster has room for."""
        there = self.ray.cluster_resources()
        room = []
        for kind, needed, option in (("CPU", self.cpus, "cpus"), ("GPU", self.gpus, "gpus")):
            if needed and there.get(kind, 0) < needed:
                raise BadInput(
                    f"--{option}-per-{self.per} {needed:g}: the Ray cluster has {there.get(kind, 0):g} {kind}s in all"
                )
            room += [int(there[kind] / needed)] if needed else []
        return max(1, min(room, default=1))


def found_from_here(recipe: Recipe) -> Recipe:
    """Return a recipe whose files are looked for in this process's working directory too."""
    return replace(recipe, folders=(*recipe.folders, Path.cwd()))
