"""Executors: what trains the clients of a round; the built-in ones are `loop`, `stack` and `lanes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedhead.algorithm.phase import Reply
from fedhead.executors.client.job import Job

Prepare = Callable[[Sequence[Sequence[Reply]]], None]  # see `Executor.train_and_prepare`


class Executor:
    """Trains the clients of jobs; one of your own overrides `run`.

    Attributes:
        name: Name of the executor.
        preparing: Seconds that training has waited so far for compiling and capturing, which do not count as training.
        compiled: Whether the steps of the last jobs were compiled, all of them.
        keeps_stacks: Whether states and replies may stay in one stack from round to round: no code reads or changes
            single ones on the way.
    """

    name: str = ""
    keeps_stacks: bool = False
    preparing: float = 0.0
    compiled: bool = False

    def __init_subclass__(cls, **settings: Any) -> None:
        """Name a class that nobody has named."""
        super().__init_subclass__(**settings)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    @property
    def replies_finite(self) -> bool:
        """Whether all numbers of the replies that were returned last were seen to be finite; may wait for a GPU."""
        return False

    def run(self, job: Job) -> list[Reply]:
        """Train the clients of a job.

        Args:
            job: The clients of one architecture, with what they receive, hold and do.

        Returns:
            The replies in the order of the job's clients.
        """
        raise NotImplementedError

    def run_all(self, jobs: list[Job]) -> Sequence[Sequence[Reply]]:
        """Train the clients of several jobs; one job after another by default.

        Args:
            jobs: One job per architecture.

        Returns:
            The replies of each job.
        """
        return [self.run(job) for job in jobs]

    def train_and_prepare(self, jobs: list[Job], prepare: Prepare) -> Sequence[Sequence[Reply]]:
        """Train the clients of several jobs, and prepare the next round while a GPU computes their replies.

        Args:
            jobs: One job per architecture.
            prepare: Prepares the next round; called once with the replies of each job, whose numbers a GPU may not have
                computed yet.

        Returns:
            The replies of each job.
        """
        replies = self.run_all(jobs)
        prepare(replies)
        return replies
