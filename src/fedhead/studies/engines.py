"""Engines: run the jobs of a queue in this process, one by one or at once, or on a Ray cluster."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import torch

from fedhead.core.system.errors import BadInput, require
from fedhead.engine.experiment.compute import Compute
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.studies.queue import Engine, Queue, RunJob

RUNS_AT_ONCE = 64  # of a shared engine, each of which holds its own copy of the data


class LocalEngine:
    """Engine that runs jobs one after another in this process."""

    def device(self, settings: Compute) -> torch.device:
        """Return where jobs will train."""
        return select.device(settings.device)

    def run(self, queue: Queue[Any]) -> None:
        """Run jobs until the queue has none."""
        while (job := queue.next()) is not None:
            queue.finish(job, job.run())


class SharedEngine(LocalEngine):
    """Engine that runs jobs at once; runs that differ in seeds and partitions alone train in one stack."""

    def device(self, settings: Compute) -> torch.device:
        """Return where jobs will train; refuse an executor that is no stack."""
        require(
            settings.executor in ("auto", "stack"),
            f"engine shared trains in stacks: leave executor {settings.executor!r} out, or use engine local",
        )
        return super().device(settings)

    def run(self, queue: Queue[RunJob]) -> None:
        """Run jobs until the queue has none."""
        while jobs := list(islice(iter(queue.next, None), RUNS_AT_ONCE)):
            settings = jobs[0].settings
            stack = select.shared_stack(self.device(settings), settings.compile)
            errors = stack.run({number: partial(_run, queue, job) for number, job in enumerate(jobs)})
            if errors:
                raise next(iter(errors.values()))


def _run(queue: Queue[RunJob], job: RunJob, executor: Executor) -> None:
    queue.finish(job, job.run(executor))


def make_engine(name: str, cpus: float, gpus: float, per: str) -> Engine:
    """Return the engine of a name.

    Args:
        name: `local`, `shared` or `ray`.
        cpus: CPUs of a job on a Ray cluster.
        gpus: Its GPUs.
        per: What a job is called in the names of options: --cpus-per-cell.

    Raises:
        BadInput: There is no such engine, Ray is not installed, or resources are given to this process.
    """
    if name == "ray":
        from fedhead.studies.ray_engine import RayEngine

        return RayEngine(cpus, gpus, per)
    engines = {"local": LocalEngine, "shared": SharedEngine}
    if name not in engines:
        raise BadInput(f"engine {name!r}: give 'local', 'shared' or 'ray'")
    if (cpus, gpus) != (1, 0):
        raise BadInput(f"cpus and gpus per {per} are resources of a Ray cluster: add --engine ray (engine='ray')")
    return engines[name]()
