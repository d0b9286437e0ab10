"""Shared stack: clients of several runs in one stack, so that small federations fill a GPU too.

Each run has its own round loop, in its own thread, and its own executor. Nothing above the executor knows of the other
runs. Only one thread runs at a time, since threads that compete for the interpreter slow each other down. A run that
requests a round of training waits until all others have requested one or have ended. Then one call trains the clients
of all runs that are at the same round.
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
    """Training request of a run, with its replies or its error."""

    number: int  # index of the run
    job: Job
    outcome: Sequence[Reply] | BaseException | None = None


class SharedStack:
    """Stack that trains the clients of several runs together.

    Runs that differ only in seeds and partitions share a stack. The results are the same as in separate runs, up to
    rounding: each run's broadcast becomes part of its per-client messages.

    Args:
        stack: Executor that trains the stacks.
    """

    def __init__(self, stack: Stack):
        self.stack = stack
        self._turn = threading.Condition()  # lock of the running thread
        self._running = 0
        self._waiting: list[_Request] = []
        self._interrupt: BaseException | None = None
        self._compatible: dict[tuple[int, int], tuple[ClientProgram, ClientProgram, bool]] = {}

    def run(self, runs: Mapping[T, Callable[[Executor], object]]) -> dict[T, BaseException]:
        """Run several functions, each with its own executor, and return the errors of those that failed.

        Args:
            runs: Functions keyed by run.

        Raises:
            BaseException: For an interrupt, after all runs have ended.
        """
        errors: dict[T, BaseException] = {}

        def proceed(number: int, name: T, function: Callable[[Executor], object]) -> None:
            with self._turn:
                try:
                    if self._interrupt is None:
                        function(_Member(self, number, len(runs)))
                except BaseException as error:  # returned to the caller
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
        except BaseException as error:  # only the main thread receives an interrupt
            self._interrupt = error
            for thread in threads:
                thread.join()
            raise
        return errors

    def train(self, number: int, job: Job) -> Sequence[Reply]:
        """Wait for the other runs, then train with them; the caller holds the lock."""
        request = _Request(number, job)
        self._waiting.append(request)
        self._waiting.sort(key=attrgetter("number"))  # in every round the same run is first, as its CUDA graphs require
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
            # Runs that are behind, such as resumed ones, train first until all are at the same round.
            behind = min(request.job.round for request in self._waiting)
            self._train_requests([request for request in self._waiting if request.job.round == behind])
        self._waiting = [request for request in self._waiting if request.outcome is None]
        self._turn.notify_all()

    def _train_requests(self, requests: list[_Request]) -> None:
        """Train the clients of several runs; on failure retry each run alone, so that only faulty runs end."""
        try:
            groups = self._grouped(requests)
            stacks = self.stack.train_all([merge_jobs([request.job for request in group]) for group in groups])
        except Exception as error:  # users' code may raise anything
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
        """Return whether two jobs can share a stack (cached)."""
        key = id(a.program.task), id(b.program.task)  # programs are created in every round, tasks are not
        if key not in self._compatible:
            self._compatible[key] = a.program, b.program, _are_compatible(a.program, b.program)
        return a.lr == b.lr and self._compatible[key][2]


class _Member(Executor):
    """Executor of one run."""

    name = "stack"

    def __init__(self, shared: SharedStack, number: int, runs: int):
        self._shared, self._number, self._runs = shared, number, runs

    def run(self, jobs: Sequence[Job]) -> ReplySet:
        """Train with the other runs; stages, users' methods and uploads, and several architectures train alone.

        A merged job has the task of its first run. Tasks differ in seed and sizes, which no built-in component reads.
        """
        program = jobs[0].program
        built_in = all(is_built_in(part) for part in (program.algorithm, *program.uploads))
        alone = len(jobs) > 1 or program.privacy is not None
        if alone or not (built_in and isinstance(program.algorithm, Method)):
            return self._shared.stack.run(jobs)
        replies = ReplySet.of_jobs(self.name, jobs, [self._shared.train(self._number, jobs[0])])
        replies.whole_stacks = False  # tables are precomputed for single runs, not for merged jobs
        return replies

    def report(self) -> ExecutorReport:
        """Return the report of the shared stack."""
        return self._shared.stack.report()._replace(runs=self._runs)


def merge_jobs(jobs: Sequence[Job]) -> Job:
    """Merge jobs of several runs into one; broadcasts become part of the per-client messages."""
    if len(jobs) == 1:
        return jobs[0]
    compiled = [job.compiled for job in jobs if job.compiled is not None]
    return replace(
        jobs[0],
        clients=list(range(sum(len(job.clients) for job in jobs))),
        broadcast=Tree(),
        per_client=[job.broadcast.replace(tree) if tree else job.broadcast for job in jobs for tree in job.per_client],
        states=[state for job in jobs for state in job.states],
        indices=[indices for job in jobs for indices in job.indices],
        counts=[counts for job in jobs for counts in job.counts],
        schedules=[schedules for job in jobs for schedules in job.schedules],
        compiled=any(compiled) if compiled else None,
        tables=None,
    )


def _are_compatible(a: ClientProgram, b: ClientProgram) -> bool:
    """Return whether two programs differ at most in seeds and sizes."""
    first, second = (
        (
            program.algorithm,
            program.uploads,
            program.bf16,
            replace(program.task, model=None, seed=0, sizes=(), pool=None),  # type: ignore[arg-type]  # compared below
            module_digest(program.task.model, weights=False),
            program.task.model.fixed,
        )
        for program in (a, b)
    )
    return first == second and _equal_pools(a.pool, b.pool) and _equal_pools(a.public, b.public)


def _equal_pools(a: Pool | None, b: Pool | None) -> bool:
    if a is None or b is None or a is b:
        return a is b
    if a.transform != b.transform or len(a) != len(b):
        return False
    pairs = zip([*tensors_of(a.x), a.y], [*tensors_of(b.x), b.y], strict=True)
    return all(torch.equal(x, y) for x, y in pairs)
