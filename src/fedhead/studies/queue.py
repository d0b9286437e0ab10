"""The queue of a sweep, a paper's table or a search.

A queue hands out jobs and takes their results; an engine runs the jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import Log
from fedhead.engine.experiment.compute import Compute
from fedhead.executors.client.base import Executor
from fedhead.recipes.recipe import Recipe
from fedhead.studies.claims import Claims
from fedhead.studies.time_budget import TimeBudget
from fedhead.studies.training import training_key


class RemoteJob(Protocol):
    """A unit of work that a Ray worker can do."""

    def worker(self, *arguments: Any) -> Any:
        """Run on the worker: a generator of what it sends."""
        ...

    def arguments(self, ray: Any, number: int) -> tuple[Any, ...]:
        """Return the arguments of `worker`, also for another attempt; `number` is the job's own in the cluster."""
        ...

    def receive(self, item: Any) -> None:
        """Take what the worker has sent."""
        ...

    def result(self, error: BaseException | str | None) -> Any:
        """Return the result after the worker has ended, or has failed."""
        ...


J = TypeVar("J")


class Queue(Protocol[J]):
    """Jobs that are left, and what becomes of them."""

    def next(self) -> J | None:
        """Return the next job; None where there is none for now."""
        ...

    def finish(self, job: J, result: Any) -> None:
        """Record the result of a job."""
        ...


class Engine(Protocol):
    """Runs the jobs of a queue."""

    def device(self, settings: Compute) -> torch.device:
        """Return where jobs will train; refuse a device that is not there."""
        ...

    def run(self, queue: Queue[Any]) -> None:
        """Run jobs until the queue has none."""
        ...


class RunJob(Protocol):
    """A training, and everything that is computed from it; its result is why runs failed, by their names."""

    settings: Compute

    def run(self, executor: Executor | None = None) -> Any:
        """Do the work in this process, by this executor where one is given, and return its result."""
        ...

    @property
    def recipe(self) -> Recipe:
        """The recipe of the training."""
        ...

    def describe(self) -> str:
        """Return the runs of the job in one line."""
        ...

    def unfinished(self) -> int:
        """Return how many runs of the job are not finished."""
        ...


class RunQueue:
    """Trainings that are left, as far as time allows and no other process has taken them.

    Args:
        jobs: The trainings, in order.
        budget: The time that there is.
        claims: The trainings that processes have taken.
        log: Called with a line about each training that begins, and about each run that fails.

    Attributes:
        failures: Why runs failed, by their names.
        unfinished: The number of runs that were not finished at first.
    """

    def __init__(self, jobs: Sequence[RunJob], budget: TimeBudget, claims: Claims, log: Log):
        self.failures: dict[str, str] = {}
        self._jobs = list(jobs)
        self._budget, self._claims, self._log = budget, claims, log
        self.unfinished = self._total = sum(job.unfinished() for job in jobs)
        self._begun = 0

    def next(self) -> RunJob | None:
        """Return the next training; None where there is none, or the time is up."""
        while self._jobs and not self._budget.exhausted:
            job = self._jobs.pop(0)
            count = job.unfinished()
            if not self._claims.take(training_key(job.recipe)):
                self._total -= count
                continue
            first, last = self._begun + 1, self._begun + count
            numbers = f"{first}-{last}" if count > 1 else str(first)
            self._log(f"[{numbers}/{self._total}] {job.describe()}")
            self._begun += count
            return job
        return None

    def finish(self, job: RunJob, result: Mapping[str, str]) -> None:
        """Record which runs of a training failed."""
        for name, reason in result.items():
            self._log(f"failed: {name}: {reason}")
            self._claims.fail(name, reason)
        self.failures |= result

    @property
    def left(self) -> int:
        """The number of runs that neither this process nor another has begun."""
        return sum(job.unfinished() for job in self._jobs if not self._claims.is_taken(training_key(job.recipe)))


def read_shard(text: str) -> tuple[int, int]:
    """Read which part of how many, from 1 on.

    Raises:
        BadInput: It is not of the form 3/16, or there is no such part.

    >>> read_shard("3/16")
    (3, 16)
    """
    match = re.fullmatch(r"\s*(\d{1,9})/(\d{1,9})\s*", text, re.ASCII) if isinstance(text, str) else None
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise BadInput(f"--shard {text!r}: write which of how many, from 1/16 to 16/16")
    return number, count
