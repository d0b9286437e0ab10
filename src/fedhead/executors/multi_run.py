"""Runs that train together: the clients of several seeds in one stack, so that small federations fill a GPU too.

Each run proceeds in its own thread; when it trains its clients, it waits until all other runs are ready, and one stack
trains them all. The broadcast of each run becomes part of what its own clients receive, so that each client gets the
same numbers as it would in a single run. With `mix_numbers`, runs that differ in numbers such as the learning rate or
μ share a stack too (`executors.numbers`), up to rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from fedhead.algorithm.phase import Reply
from fedhead.core.errors import first_line
from fedhead.core.inputs import shape_of, tensors_of
from fedhead.core.log import warn_once
from fedhead.core.schema import schema
from fedhead.core.tree import Tree
from fedhead.executors import numbers
from fedhead.executors.job import CheckedLosses, Executor, Job
from fedhead.executors.program import Program
from fedhead.models.module_digest import module_digest
from fedhead.models.split_model import SplitModel

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
        mix_numbers: Whether runs that differ only in numbers share a stack.
    """

    def __init__(self, worker: Executor, mix_numbers: bool = False):
        self.worker = worker
        self._mixes = mix_numbers and worker.takes_numbers
        self._mixed: list[_Mixed] = []
        self._condition = threading.Condition()
        self._members = 0
        self._joined = 0
        self._waiting: list[_Request] = []
        self._same_data_cache: dict[tuple[int, int], bool] = {}
        self._computations: dict[int, tuple[SplitModel, str]] = {}  # by the id of the model, which is held
        self.checked_losses = CheckedLosses()

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
        stacks = [self._merge([jobs[index] for index in group]) for group in groups]
        try:
            outcome = self.worker.run_all(stacks)
        except (RuntimeError, TypeError, ValueError) as error:
            if not any(stack.numbers for stack in stacks):
                raise
            warn_once(f"runs that differ in their numbers train one after another ({first_line(error)})")
            self._mixes = False
            return self._train(jobs)
        replies: dict[int, list[Reply]] = {}
        for group, found in zip(groups, outcome, strict=True):
            for index in group:
                count = len(jobs[index].clients)
                replies[index], found = found[:count], found[count:]
        return [replies[index] for index in range(len(jobs))]

    def _compatible(self, a: Job, b: Job) -> bool:
        """Return whether two jobs do the same work on the same data."""
        if a.round != b.round or (a.lr != b.lr and not self._mixes):
            return False
        if schema(a.broadcast.replace(a.per_client[0])) != schema(b.broadcast.replace(b.per_client[0])):
            return False
        return self._alike(a.program, b.program)

    def _alike(self, a: Program, b: Program) -> bool:
        """Return whether clients of two programs do the same work on the same data, but for their numbers."""
        one, other = [(p.bf16, repr(p.uploads), p.task.objective, self._work(p)) for p in (a, b)]
        if one != other:
            return False
        mine, theirs = a.task.model, b.task.model
        if self._computation(mine) != self._computation(theirs) or mine.fixed != theirs.fixed:
            return False
        key = (id(a.pool), id(b.pool))
        if key not in self._same_data_cache:
            self._same_data_cache[key] = _same_data(a, b)
        return self._same_data_cache[key]

    def _computation(self, model: SplitModel) -> str:
        """What a model computes with given weights: the clients of a stack are trained with one model's code."""
        if id(model) not in self._computations:
            self._computations[id(model)] = (model, module_digest(model, weights=False))
        return self._computations[id(model)][1]

    def _work(self, program: Program) -> Any:
        """What the clients of a stack must have in common in their algorithm and their local training."""
        if self._mixes:
            return numbers.describe(program.algorithm, program.task)[0]
        return repr(program.algorithm), program.task.local

    def _merge(self, jobs: list[Job]) -> Job:
        """Merge jobs into one, with what differs between their runs as numbers."""
        merged = merge_jobs(jobs)
        if not self._mixes:
            return merged
        found = [numbers.describe(job.program.algorithm, job.program.task)[1] for job in jobs]
        mixed = next((each for each in self._mixed if self._alike(each.program, merged.program)), None)
        if mixed is None:
            self._mixed.append(mixed := _Mixed(merged.program, found[0]))
        mixed.names |= {name for each in found for name, value in each.items() if value != mixed.numbers[name]}
        if any(job.lr != merged.lr for job in jobs):
            mixed.names.add(numbers.ROUND_LR)
        if not mixed.names:
            return merged
        own = [
            {name: ({**each, numbers.ROUND_LR: job.lr})[name] for name in sorted(mixed.names)}
            for each, job in zip(found, jobs, strict=True)
        ]
        spread = [mine for mine, job in zip(own, jobs, strict=True) for _ in job.clients]
        return replace(merged, program=mixed.program, numbers=spread)


@dataclass
class _Mixed:
    """Runs that differ in numbers; one program serves them all, so that a GPU's graphs are captured once."""

    program: Program
    numbers: Mapping[str, float]  # of the program
    names: set[str] = field(default_factory=set)  # of the numbers that differ


def run_together(worker: Executor, runs: Sequence[Callable[[Executor], T]], *, mix_numbers: bool = False) -> list[T]:
    """Run several functions concurrently, each with its own executor, and return their results.

    A run that fails does not stop the others; its error is raised when all have ended.

    Args:
        worker: Executor that trains the clients of all runs.
        runs: Functions of an executor.
        mix_numbers: Whether runs that differ only in numbers, such as the learning rate, share a stack.

    Returns:
        The result of each function.
    """
    multi_run = MultiRun(worker, mix_numbers)
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
        self.checked_losses = multi_run.checked_losses
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


def _same_data(a: Program, b: Program) -> bool:
    pairs = [(a.pool, b.pool), (a.public, b.public)]
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
