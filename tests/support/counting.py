"""A stack that notes what it trains, and trains as every other stack does."""

from __future__ import annotations

from collections.abc import Sequence

from fedhead.algorithm.phase import Reply
from fedhead.executors.job import Job
from fedhead.executors.stack import Stack


class CountingStack(Stack):
    """Notes of each stack that it has trained how many clients it had, and the names of the numbers they differ in.

    It leaves `run` and `run_all` alone: with one of a user's own, replies and states would not stay in one stack, and
    tests would not see what runs do.
    """

    def __init__(self) -> None:
        super().__init__()
        assert self.keeps_stacks
        self.widths: list[int] = []
        self.names: set[str] = set()

    def _run_stack(self, job: Job) -> Sequence[Reply]:
        found = super()._run_stack(job)
        self.widths.append(len(job.clients))
        self.names |= set(job.numbers[0]) if job.numbers else set()
        return found
