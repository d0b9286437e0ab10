"""The shared stack: clients of several runs in one stack, so that small federations fill a GPU too.

Each run keeps its own round loop, in a thread of its own, and an executor of its own; nothing above the executor knows
of the others. One thread proceeds at a time, since threads that compete for the interpreter slow each other down. A run
that asks for a round of training waits until all others ask or have ended; then one call trains the clients of all runs
that are at the same round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeVar

import torch

from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Reply
from fedhead.core.tree.inputs import tensors_of
from fedhead.core.tree.tree import Tree
from fedhead.data.pool import Pool
from fedhead.executors.client.base import Executor, ExecutorReport
from fedhead.executors.client.hook_check import is_built_in
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import ClientProgram
from fedhead.executors.client.reply_set import ReplyRows, ReplySet
from fedhead.executors.stack.stack import Stack
from fedhead.models.module_digest import module_digest

T = TypeVar("T")


@dataclass
class _Request:
    """The job of a run's round, and its replies or the error by which it failed."""

    number: int  # of the run
    job: Job
    outcome: Sequence[Reply] | BaseException | None = None


class SharedStack:
    """Stack that trains the clients of several runs together.

    Runs that differ in their seeds and partitions alone share a stack. Each client gets the same numbers as in a run of
    its own, up to rounding: the broadcast of each run becomes part of what its clients receive.

    Args:
        stack: The executor that trains the stacks.
    """

    def __init__(self, stack: Stack):
        self.stack = stack
        self._turn = threading.Condition()  # held by the run that proceeds
        self._running = 0
        self._waiting: list[_Request] = []
        self._interrupt: BaseException | None = None
        self._alike: dict[tuple[int, int], tuple[ClientProgram, ClientProgram, bool]] = {}

    def run(self, runs: Mapping[T, Callable[[Executor], object]]) -> dict[T, BaseException]:
        """Run several functions, each with an executor of its own, and return the errors of those that failed.

        Args:
            runs: The functions by the names of the runs.

        Raises:
            BaseException: An interrupt, after which every run has ended.
        """
        errors: dict[T, BaseException] = {}

        def proceed(number: int, name: T, function: Callable[[Executor], object]) -> None:
            with self._turn:
                try:
                    if self._interrupt is None:
                        function(_Member(self, number, len(runs)))
                except BaseException as error:  # told to the caller
                    errors[name] = error
                finally:
                    self._running -= 1
                    self._train_if_all_wait()

        self._running = len(runs)
        threads = [
            threading.Thread(target=copy_context().run, args=(proceed, number, name, function))
            for number, (name, function) in enumerate(runs.items())
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt reaches the main thread alone
            self._interrupt = error
            for thread in threads:
                thread.join()
            raise
        return errors

    def train(self, number: int, job: Job) -> Sequence[Reply]:
        """Wait for the other runs, then train with them; called by the run that proceeds."""
        request = _Request(number, job)
        self._waiting.append(request)
        self._waiting.sort(key=attrgetter("number"))  # one order in every round: captured steps are those of the first
        self._train_if_all_wait()
        self._turn.wait_for(lambda: request.outcome is not None)
        if isinstance(request.outcome, BaseException):
            raise request.outcome
        assert request.outcome is not None, "waited for"
        return request.outcome

    def _train_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._running:
            return
        if self._interrupt is not None:
            for request in self._waiting:
                request.outcome = self._interrupt
        else:
            # Runs that are behind, such as resumed ones, go first until all are at the same round.
            behind = min(request.job.round for request in self._waiting)
            self._train_requests([request for request in self._waiting if request.job.round == behind])
        self._waiting = [request for request in self._waiting if request.outcome is None]
        self._turn.notify_all()

    def _train_requests(self, requests: list[_Request]) -> None:
        """Train the clients of several runs; if that fails, each run by itself, so that only those that fail end."""
        try:
            groups = self._grouped(requests)
            stacks = self.stack.train_all([merge_jobs([request.job for request in group]) for group in groups])
        except Exception as error:  # a user's own code may raise anything
            if len(requests) == 1:
                requests[0].outcome = error
                return
            for request in requests:
                self._train_requests([request])
            return
        for group, replies in zip(groups, stacks, strict=True):
            begin = 0
            for request in group:
                places = range(begin, begin := begin + len(request.job.clients))
                if isinstance(replies, ReplyRows):
                    request.outcome = replies.take(places)
                else:
                    request.outcome = [replies[place] for place in places]

    def _grouped(self, requests: Sequence[_Request]) -> list[list[_Request]]:
        """Group the requests whose clients can share a stack."""
        groups: list[list[_Request]] = []
        for request in requests:
            group = next((group for group in groups if self._share(group[0].job, request.job)), None)
            if group is None:
                groups.append([request])
            else:
                group.append(request)
        return groups

    def _share(self, a: Job, b: Job) -> bool:
        """Return whether the clients of two jobs do the same work on the same data."""
        key = id(a.program.task), id(b.program.task)  # programs are made in every round, of the same parts
        if key not in self._alike:
            self._alike[key] = a.program, b.program, _are_alike(a.program, b.program)
        return a.lr == b.lr and self._alike[key][2]


class _Member(Executor):
    """The executor of one run."""

    name = "stack"

    def __init__(self, shared: SharedStack, number: int, runs: int):
        self._shared, self._number, self._runs = shared, number, runs

    def run(self, jobs: Sequence[Job]) -> ReplySet:
        """Train with the other runs; stages, users' methods and uploads, and several architectures train alone.

        A merged job has the task of its first run. No built-in component looks at what differs, seed and sizes.
        """
        program = jobs[0].program
        built_in = all(is_built_in(part) for part in (program.algorithm, *program.uploads))
        if len(jobs) > 1 or not (built_in and isinstance(program.algorithm, Method)):
            return self._shared.stack.run(jobs)
        replies = ReplySet.of_jobs(self.name, jobs, [self._shared.train(self._number, jobs[0])])
        replies.whole_stacks = False  # tables made ahead are of one run, a merged job makes its own
        return replies

    def report(self) -> ExecutorReport:
        """Return the report of the shared stack."""
        return self._shared.stack.report()._replace(runs=self._runs)


def merge_jobs(jobs: Sequence[Job]) -> Job:
    """Merge jobs of several runs into one; their broadcasts become part of what each client receives."""
    if len(jobs) == 1:
        return jobs[0]
    compiled = [job.compiled for job in jobs if job.compiled is not None]
    return replace(
        jobs[0],
        clients=list(range(sum(len(job.clients) for job in jobs))),
        broadcast=Tree(),
        per_client=[job.broadcast.replace(own) if own else job.broadcast for job in jobs for own in job.per_client],
        states=[state for job in jobs for state in job.states],
        rows=[rows for job in jobs for rows in job.rows],
        counts=[counts for job in jobs for counts in job.counts],
        schedules=[schedules for job in jobs for schedules in job.schedules],
        compiled=any(compiled) if compiled else None,
        tables=None,
    )


def _are_alike(a: ClientProgram, b: ClientProgram) -> bool:
    """Return whether clients of two programs do the same work on the same data; seeds and sizes may differ."""
    first, second = (
        (
            program.algorithm,
            program.uploads,
            program.bf16,
            replace(program.task, model=None, seed=0, sizes=(), pool=None),  # type: ignore[arg-type]  # compared apart
            module_digest(program.task.model, weights=False),
            program.task.model.fixed,
        )
        for program in (a, b)
    )
    return first == second and _hold_the_same(a.pool, b.pool) and _hold_the_same(a.public, b.public)


def _hold_the_same(a: Pool | None, b: Pool | None) -> bool:
    if a is None or b is None or a is b:
        return a is b
    if a.transform != b.transform or len(a) != len(b):
        return False
    pairs = zip([*tensors_of(a.x), a.y], [*tensors_of(b.x), b.y], strict=True)
    return all(torch.equal(one, other) for one, other in pairs)
