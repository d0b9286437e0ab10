"""Queue of a sweep, a paper table or a search.

A queue hands out jobs and records their results; an engine runs the jobs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fedhead.core.system.errors import BadInput
from fedhead.core.system.log import Log
from fedhead.studies.run_job import RunJob
from fedhead.studies.time_budget import TimeBudget

J = TypeVar("J")


class Queue(Protocol[J]):
    """Queue of pending jobs that also records their results."""

    def next(self) -> J | None:
        """Return the next job; None if no job is available now."""
        ...

    def finish(self, job: J, result: Any) -> None:
        """Record the result of a job."""
        ...


class RunQueue:
    """Queue of trainings, limited by a time budget.

    Args:
        jobs: Trainings, in order.
        budget: Time budget.
        log: Called with a line for each training that starts and each run that fails.

    Attributes:
        failures: Reasons of failed runs, by run name.
        unfinished: Number of runs that were unfinished at the start.
    """

    def __init__(self, jobs: Sequence[RunJob], budget: TimeBudget, log: Log):
        self.failures: dict[str, str] = {}
        self._jobs = list(jobs)
        self._budget, self._log = budget, log
        self.unfinished = self.left
        self._begun = 0

    def next(self) -> RunJob | None:
        """Return the next training; None if the queue is empty or the time budget is exhausted."""
        if not self._jobs or self._budget.exhausted:
            return None
        job = self._jobs.pop(0)
        names = job.unfinished()
        first, self._begun = self._begun + 1, self._begun + len(names)
        numbers = f"{first}-{self._begun}" if len(names) > 1 else str(first)
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        self._log(f"[{numbers}/{self.unfinished}] {'; '.join(names[:2])}{more}")
        return job

    def finish(self, job: RunJob, result: Mapping[str, str]) -> None:
        """Record the failed runs of a training."""
        for name, reason in result.items():
            self._log(f"failed: {name}: {reason}")
        self.failures |= result

    @property
    def left(self) -> int:
        """Number of runs that were not started."""
        return sum(len(job.unfinished()) for job in self._jobs)


def read_shard(text: str) -> tuple[int, int]:
    """Parse a shard as its number, from 1, and the number of shards.

    Raises:
        BadInput: If the text is not of the form 3/16, or there is no such shard.

    >>> read_shard("3/16")
    (3, 16)
    """
    match = re.fullmatch(r"\s*(\d{1,9})/(\d{1,9})\s*", text, re.ASCII) if isinstance(text, str) else None
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise BadInput(f"--shard {text!r}: write which of how many, from 1/16 to 16/16")
    return number, count
