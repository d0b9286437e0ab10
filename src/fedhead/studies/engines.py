"""Engines that run the jobs of a queue: sequentially or stacked."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import torch

from fedhead.core.system.errors import require
from fedhead.engine.experiment.compute import Compute
from fedhead.executors import select
from fedhead.executors.client.base import Executor
from fedhead.studies.queue import Queue
from fedhead.studies.run_job import RunJob

RUNS_AT_ONCE = 64  # limit of a shared engine: each run holds its own copy of the data


class LocalEngine:
    """Engine that runs jobs one after another in this process."""

    def device(self, compute: Compute) -> torch.device:
        """Return the device of the jobs."""
        return select.device(compute.device)

    def run(self, queue: Queue[Any]) -> None:
        """Run jobs until the queue is empty."""
        while (job := queue.next()) is not None:
            queue.finish(job, job.run())


class SharedEngine(LocalEngine):
    """Engine that runs jobs concurrently; runs that differ only in seed or partition train in one stack."""

    def device(self, compute: Compute) -> torch.device:
        """Return the device of the jobs; raise an error for an executor other than the stack."""
        require(
            compute.executor in ("auto", "stack"),
            f"engine shared trains in stacks: leave executor {compute.executor!r} out, or use engine local",
        )
        return super().device(compute)

    def run(self, queue: Queue[RunJob]) -> None:
        """Run jobs until the queue is empty."""
        while jobs := list(islice(iter(queue.next, None), RUNS_AT_ONCE)):
            compute = jobs[0].compute
            stack = select.shared_stack(self.device(compute), compute.compile)
            errors = stack.run({number: partial(_run, queue, job) for number, job in enumerate(jobs)})
            if errors:
                raise next(iter(errors.values()))


def _run(queue: Queue[RunJob], job: RunJob, executor: Executor) -> None:
    queue.finish(job, job.run(executor))


def make_engine(name: str) -> LocalEngine:
    """Create the engine `local` or `shared`.

    Raises:
        BadInput: There is no such engine.
    """
    engines = {"local": LocalEngine, "shared": SharedEngine}
    require(name in engines, f"engine {name!r}: give 'local' or 'shared'")
    return engines[name]()
