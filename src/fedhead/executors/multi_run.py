"""Runs that train together: the clients of several seeds in one stack, so that small federations fill a GPU too.

Each run goes on in a thread of its own, as it would alone; where it would train its clients, it waits until all the
others are there, and then one stack trains them all. The broadcast of each run becomes part of what its own clients
receive, so a stacked client can't tell whose round it is in, and gets the numbers that it would have got alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from fedhead.algorithm.phase import Reply
from fedhead.core.schema import schema
from fedhead.core.tree import Tree
from fedhead.executors.job import Executor, Job

T = TypeVar("T")


@dataclass
class _Ticket:
    jobs: list[Job]
    replies: list[list[Reply]] = field(default_factory=list)
    error: BaseException | None = None
    served: bool = False

    @property
    def round(self) -> int:
        return self.jobs[0].round


class MultiRun:
    """Where runs meet; `enter()` gives each of them its executor."""

    def __init__(self, worker: Executor):
        self.worker = worker
        self._door = threading.Condition()
        self._members = 0
        self._waiting: list[_Ticket] = []
        self._same: dict[tuple[int, int], bool] = {}

    def enter(self) -> Executor:
        """An executor for one more run; all must have entered before any of them starts."""
        with self._door:
            self._members += 1
        return _Member(self)

    def leave(self) -> None:
        """A run has ended: the others don't wait for it any longer."""
        with self._door:
            self._members -= 1
            self._serve_if_all_are_here()

    def run_all(self, jobs: list[Job]) -> list[list[Reply]]:
        """Wait for the other members, then train with them."""
        ticket = _Ticket(jobs)
        with self._door:
            self._waiting.append(ticket)
            self._serve_if_all_are_here()
            self._door.wait_for(lambda: ticket.served)
        if ticket.error is not None:
            raise ticket.error
        return ticket.replies

    def _serve_if_all_are_here(self) -> None:
        if not self._waiting or len(self._waiting) < self._members:
            return
        # runs that were resumed may stand at different rounds: those behind go first, until all are level
        behind = min(ticket.round for ticket in self._waiting)
        tickets = [ticket for ticket in self._waiting if ticket.round == behind]
        self._waiting = [ticket for ticket in self._waiting if ticket.round != behind]
        try:
            found = iter(self._train([job for ticket in tickets for job in ticket.jobs]))
            for ticket in tickets:
                ticket.replies = [next(found) for _ in ticket.jobs]
        except BaseException as error:  # whoever waits must learn of it, whatever it is
            for ticket in tickets:
                ticket.error = error
        for ticket in tickets:
            ticket.served = True
        self._door.notify_all()

    def _train(self, jobs: list[Job]) -> list[list[Reply]]:
        groups: list[list[int]] = []
        for place, job in enumerate(jobs):
            group = next((group for group in groups if self._fit(jobs[group[0]], job)), None)
            if group is None:
                groups.append(group := [])
            group.append(place)
        together = [merged([jobs[place] for place in group]) for group in groups]
        replies: dict[int, list[Reply]] = {}
        for group, found in zip(groups, self.worker.run_all(together), strict=True):
            for place in group:
                count = len(jobs[place].clients)
                replies[place], found = found[:count], found[count:]
        return [replies[place] for place in range(len(jobs))]

    def _fit(self, a: Job, b: Job) -> bool:
        """Whether two jobs do the same work on the same data."""
        one, other = [
            (job.round, job.lr, job.program.bf16, repr(job.program.algorithm), repr(job.program.uploads))
            for job in (a, b)
        ]
        if one != other:
            return False
        if a.program.task.local != b.program.task.local or str(a.program.task.model) != str(b.program.task.model):
            return False
        if schema(a.broadcast.replace(a.per_client[0])) != schema(b.broadcast.replace(b.per_client[0])):
            return False
        key = (id(a.program.pool), id(b.program.pool))
        if key not in self._same:
            self._same[key] = _same_data(a, b)
        return self._same[key]


def together(worker: Executor, runs: Sequence[Callable[[Executor], T]]) -> list[T]:
    """Carry out runs side by side, each with the executor that it is given, and return what they return.

    A run that fails does not stop the others; its error is raised when all have ended.
    """
    joined = MultiRun(worker)
    found: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def carry_out(place: int, member: Executor) -> None:
        try:
            found[place] = runs[place](member)
        except BaseException as error:  # raised below, in the caller's thread
            errors[place] = error
        finally:
            joined.leave()

    members = [joined.enter() for _ in runs]
    threads = [threading.Thread(target=carry_out, args=pair) for pair in enumerate(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place in sorted(errors):
        raise errors[place]
    return [found[place] for place in range(len(runs))]


class _Member(Executor):
    def __init__(self, joined: MultiRun):
        self.name = joined.worker.name
        self._joined = joined

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        return self.run_all([job])[0]

    def run_all(self, jobs: list[Job]) -> list[list[Reply]]:
        """The replies of several jobs."""
        replies = self._joined.run_all(jobs)
        self.preparing = self._joined.worker.preparing
        return replies


def merged(jobs: list[Job]) -> Job:
    """One job for the clients of several, whose broadcasts become their own."""
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
        if mine.transform != theirs.transform or mine.x.shape != theirs.x.shape:
            return False
        if not (torch.equal(mine.x, theirs.x) and torch.equal(mine.y, theirs.y)):
            return False
    return True
