"""Base class of executors, which train the clients of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fedhead.algorithm.phase import Reply
from fedhead.core.components.component import Component
from fedhead.executors.client.job import Job
from fedhead.executors.client.reply_set import ReplySet


class ExecutorReport(NamedTuple):
    """Preparation time and compilation status of an executor.

    Attributes:
        compile_seconds: Seconds spent so far on compiling and capturing; they don't count as training time.
        compiled: Whether all steps of the last jobs were compiled.
        runs: Number of runs that the executor trains at once, including this one; they share the time of a round.
    """

    compile_seconds: float = 0.0
    compiled: bool = False
    runs: int = 1


class Executor(Component):
    """Base class of executors; subclasses override `train`."""

    def run(self, jobs: Sequence[Job]) -> ReplySet:
        """Train the clients of several jobs; returns before a GPU has computed the replies.

        Args:
            jobs: One job per architecture.

        Returns:
            Replies of all clients.

        Raises:
            BadInput: If `train` does not return one reply per client.
        """
        return ReplySet.of_jobs(self.name, jobs, self.train_all(jobs))

    def train_all(self, jobs: Sequence[Job]) -> Sequence[Sequence[Reply]]:
        """Train the clients of several jobs, by default one job after another.

        Args:
            jobs: One job per architecture.

        Returns:
            Replies of each job, in the order of its clients.
        """
        return [self.train(job) for job in jobs]

    def train(self, job: Job) -> Sequence[Reply]:
        """Train the clients of a job.

        Args:
            job: Clients of one architecture with their inputs.

        Returns:
            Replies in the order of the job's clients.
        """
        raise NotImplementedError

    def report(self) -> ExecutorReport:
        """Return the compile time and the compilation status."""
        return ExecutorReport()
