"""Runs that train together: the clients of several seeds in one stack, so that small federations fill a GPU too.

Each run proceeds in its own thread; when it trains its clients, it waits until all other runs are ready, and one stack
trains them all. The broadcast of each run becomes part of what its own clients receive, so that each client gets the
same numbers as it would in a single run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from fedhead.algorithm.phase import Reply
from fedhead.core.inputs import shape_of, tensors_of
from fedhead.core.schema import schema
from fedhead.core.tree import Tree
from fedhead.executors.job import Executor, Job

T = TypeVar("T")


@dataclass
class _Request:
    member: int
    jobs: list[Job]
    replies: list[list[Reply]] = field(default_factory=list)
    error: BaseException | None = None
    done: bool = False

    @property
    def round(self) -> int:
        return self.jobs[0].round


class MultiRun:
    """Trains the clients of several runs in common stacks.

    Args:
        worker: Executor that trains the stacks.
    """

    def __init__(self, worker: Executor):
        self.worker = worker
        self._condition = threading.Condition()
        self._members = 0
        self._joined = 0
        self._waiting: list[_Request] = []
        self._same_data_cache: dict[tuple[int, int], bool] = {}

    def join(self) -> Executor:
        """Return an executor for one more run; all runs must have joined before any of them starts."""
        with self._condition:
            self._members += 1
            self._joined += 1
        return _Member(self, self._joined)

    def leave(self) -> None:
        """Tell that a run has ended, so that the others no longer wait for it."""
        with self._condition:
            self._members -= 1
            self._serve_if_all_wait()

    def run_all(self, member: int, jobs: list[Job]) -> list[list[Reply]]:
        """Wait for the other runs, then train with them; `member` is the number of the run."""
        request = _Request(member, jobs)
        with self._condition:
            self._waiting.append(request)
            self._serve_if_all_wait()
            self._condition.wait_for(lambda: request.done)
        if request.error is not None:
            raise request.error
        return request.replies

    def _serve_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._members:
            return
        # resumed runs may be at different rounds: those behind go first until all are at the same
        behind = min(request.round for request in self._waiting)
        # always in the same order: what is compiled for a stack is found again by its first run
        requests = sorted((r for r in self._waiting if r.round == behind), key=lambda request: request.member)
        self._waiting = [request for request in self._waiting if request.round != behind]
        try:
            found = iter(self._train([job for request in requests for job in request.jobs]))
            for request in requests:
                request.replies = [next(found) for _ in request.jobs]
        except BaseException as error:  # any error must reach the waiting threads
            for request in requests:
                request.error = error
        for request in requests:
            request.done = True
        self._condition.notify_all()

    def _train(self, jobs: list[Job]) -> list[list[Reply]]:
        groups: list[list[int]] = []
        for index, job in enumerate(jobs):
            group = next((group for group in groups if self._compatible(jobs[group[0]], job)), None)
            if group is None:
                groups.append(group := [])
            group.append(index)
        stacks = [merge_jobs([jobs[index] for index in group]) for group in groups]
        replies: dict[int, list[Reply]] = {}
        for group, found in zip(groups, self.worker.run_all(stacks), strict=True):
            for index in group:
                count = len(jobs[index].clients)
                replies[index], found = found[:count], found[count:]
        return [replies[index] for index in range(len(jobs))]

    def _compatible(self, a: Job, b: Job) -> bool:
        """Return whether two jobs do the same work on the same data."""
        one, other = [
            (job.round, job.lr, job.program.bf16, repr(job.program.algorithm), repr(job.program.uploads))
            for job in (a, b)
        ]
        if one != other:
            return False
        mine, theirs = a.program.task, b.program.task
        if (mine.local, mine.objective) != (theirs.local, theirs.objective):
            return False
        if str(mine.model) != str(theirs.model) or mine.model.fixed != theirs.model.fixed:
            return False
        if schema(a.broadcast.replace(a.per_client[0])) != schema(b.broadcast.replace(b.per_client[0])):
            return False
        key = (id(a.program.pool), id(b.program.pool))
        if key not in self._same_data_cache:
            self._same_data_cache[key] = _same_data(a, b)
        return self._same_data_cache[key]


def run_together(worker: Executor, runs: Sequence[Callable[[Executor], T]]) -> list[T]:
    """Run several functions concurrently, each with its own executor, and return their results.

    A run that fails does not stop the others; its error is raised when all have ended.

    Args:
        worker: Executor that trains the clients of all runs.
        runs: Functions of an executor.

    Returns:
        The result of each function.
    """
    multi_run = MultiRun(worker)
    found: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def run(index: int, member: Executor) -> None:
        try:
            found[index] = runs[index](member)
        except BaseException as error:  # raised below, in the caller's thread
            errors[index] = error
        finally:
            multi_run.leave()

    members = [multi_run.join() for _ in runs]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index in sorted(errors):
        raise errors[index]
    return [found[index] for index in range(len(runs))]


class _Member(Executor):
    def __init__(self, multi_run: MultiRun, number: int):
        self.name = multi_run.worker.name
        self._multi_run = multi_run
        self._number = number

    def run(self, job: Job) -> list[Reply]:
        """Return the replies in the order of the job's clients."""
        return self.run_all([job])[0]

    def run_all(self, jobs: list[Job]) -> list[list[Reply]]:
        """Return the replies of several jobs."""
        replies = self._multi_run.run_all(self._number, jobs)
        self.preparing = self._multi_run.worker.preparing
        return replies


def merge_jobs(jobs: list[Job]) -> Job:
    """Merge jobs into one, whose broadcasts become part of what each client receives."""
    if len(jobs) == 1:
        return jobs[0]
    return replace(
        jobs[0],
        clients=list(range(sum(len(job.clients) for job in jobs))),
        broadcast=Tree(),
        per_client=[job.broadcast.replace(own) for job in jobs for own in job.per_client],
        states=[state for job in jobs for state in job.states],
        rows=[rows for job in jobs for rows in job.rows],
        counts=[counts for job in jobs for counts in job.counts],
        schedules=[schedule for job in jobs for schedule in job.schedules],
    )


def _same_data(a: Job, b: Job) -> bool:
    pairs = [(a.program.pool, b.program.pool), (a.program.public, b.program.public)]
    for mine, theirs in pairs:
        if (mine is None) != (theirs is None):
            return False
        if mine is None or theirs is None:
            continue
        if mine.transform != theirs.transform or shape_of(mine.x) != shape_of(theirs.x):
            return False
        pairs_of = zip([*tensors_of(mine.x), mine.y], [*tensors_of(theirs.x), theirs.y], strict=True)
        if not all(torch.equal(one, other) for one, other in pairs_of):
            return False
    return True
