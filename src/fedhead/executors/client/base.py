"""The base of executors, which train the clients of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedhead.algorithm.phase import Reply
from fedhead.core.components.component import Component
from fedhead.executors.client.job import Job
from fedhead.executors.client.reply_set import ReplySet


class ExecutorReport(NamedTuple):
    """The state of an executor's preparation.

    Attributes:
        preparing: Seconds that training has waited so far for compiling and capturing, which do not count as training.
        compiled: Whether the steps of the last jobs were compiled, all of them.
        runs: How many runs the executor trains at once, this one counted; they share the time of a round.
    """

    preparing: float = 0.0
    compiled: bool = False
    runs: int = 1


class Executor(Component):
    """Trains the clients of jobs; one of your own overrides `train`."""

    def run(self, jobs: Sequence[Job]) -> ReplySet:
        """Train the clients of several jobs; a GPU may still compute the numbers of their replies.

        Args:
            jobs: One job per architecture.

        Returns:
            The replies of all clients.

        Raises:
            BadInput: If `train` does not return one reply per client.
        """
        return ReplySet.of_jobs(self.name, jobs, self.train_all(jobs))

    def train_all(self, jobs: Sequence[Job]) -> Sequence[Sequence[Reply]]:
        """Train the clients of several jobs; by default one job after another.

        Args:
            jobs: One job per architecture.

        Returns:
            The replies of each job, in the order of its clients.
        """
        return [self.train(job) for job in jobs]

    def train(self, job: Job) -> Sequence[Reply]:
        """Train the clients of a job.

        Args:
            job: The clients of one architecture, with what they receive, hold and do.

        Returns:
            The replies in the order of the job's clients.
        """
        raise NotImplementedError

    def report(self) -> ExecutorReport:
        """Return how long training has waited for preparation, and whether its steps are compiled."""
        return ExecutorReport()
