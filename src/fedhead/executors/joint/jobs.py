"""The jobs of several runs, trained in as few stacks as possible.

The broadcast of each run becomes part of what its own clients receive, so that each client gets the same numbers as it
would in a single run. With `mix_hyperparameters`, runs that differ in some, such as the learning rate or μ, share a
stack too (`executors.hyperparameters`), up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import Task
from fedhead.core.system.errors import first_line
from fedhead.core.system.log import warn_once
from fedhead.core.tree.inputs import shape_of, tensors_of
from fedhead.core.tree.schema import schema
from fedhead.core.tree.stacked_trees import StackedTrees
from fedhead.core.tree.tree import Tree
from fedhead.executors.client.base import Executor
from fedhead.executors.client.hyperparameters import ROUND_LR, describe
from fedhead.executors.client.job import Job
from fedhead.executors.client.program import ClientProgram
from fedhead.executors.client.shared_work import SharedWork
from fedhead.executors.joint.tables import merge_tables
from fedhead.executors.joint.task import ReadsTask, joint_task
from fedhead.executors.stack.reply_stack import ReplyStack
from fedhead.models.module_digest import computation_digest, settings_digest


class JointJobs:
    """Trains the jobs of several runs in common stacks.

    Args:
        worker: Executor that trains the stacks.
        mix_hyperparameters: Whether runs that differ only in hyperparameters share a stack.
    """

    def __init__(self, worker: Executor, mix_hyperparameters: bool):
        self.worker = worker
        self._mixes = mix_hyperparameters and worker.mixes_hyperparameters
        self._joins = True
        self._in_one_call = False  # whether the worker was given the last jobs in one call, of which it knows
        self._mixed: list[_Mixed] = []
        self._found = SharedWork()  # what was found out about programs, which keep their parts from round to round

    @property
    def replies_finite(self) -> bool:
        """Whether all numbers of the last replies were seen to be finite; the first time, a GPU is waited for."""
        return self._in_one_call and self.worker.replies_finite

    def train(self, jobs: list[Job]) -> list[Sequence[Reply] | Exception]:
        """Return the replies of each job, or the error by which it failed; the others are trained as they are."""
        groups: list[list[int]] = []
        for index, job in enumerate(jobs):
            group = next((group for group in groups if self._compatible(jobs[group[0]], job)), None)
            if group is None:
                groups.append(group := [])
            group.append(index)
        stacks = [self._merge([jobs[index] for index in group]) for group in groups]
        try:
            outcome = self.worker.run_all(stacks)
        except ReadsTask as error:
            warn_once(f"runs train one after another: a hook reads client.task.{error}, which differs between them")
            self._joins = False
            return self.train(jobs)
        except Exception as error:  # a user's own code may raise anything
            if len(groups) > 1:  # a stack that fails must not change what the others compute
                return self._apart(jobs, groups)
            if stacks[0].hyperparameters and isinstance(error, RuntimeError | TypeError | ValueError):
                return self._unmixed(jobs, error)
            return [error] if len(jobs) == 1 else self._apart(jobs, [[index] for index in range(len(jobs))])
        self._in_one_call = True
        replies: dict[int, Sequence[Reply] | Exception] = {}
        for group, found in zip(groups, outcome, strict=True):
            begin = 0
            for index in group:
                places = range(begin, begin := begin + len(jobs[index].clients))
                if isinstance(found, ReplyStack) and self.worker.keeps_stacks:
                    replies[index] = found.take(places)
                else:
                    replies[index] = [found[place] for place in places]
        return [replies[index] for index in range(len(jobs))]

    def _apart(self, jobs: list[Job], groups: list[list[int]]) -> list[Sequence[Reply] | Exception]:
        """Train one group of jobs after another."""
        found: dict[int, Sequence[Reply] | Exception] = {}
        for group in groups:
            found |= zip(group, self.train([jobs[index] for index in group]), strict=True)
        self._in_one_call = False
        return [found[index] for index in range(len(jobs))]

    def _unmixed(self, jobs: list[Job], error: Exception) -> list[Sequence[Reply] | Exception]:
        """Train jobs that failed in one stack without sharing it, from now on if that is of use."""
        before, self._mixes, self._found = self._found, False, SharedWork()
        found = self.train(jobs)
        if all(isinstance(one, Exception) for one in found):  # the stack was not the reason
            self._mixes, self._found = True, before
        else:
            warn_once(f"runs that differ in their hyperparameters train one after another ({first_line(error)})")
        return found

    def _compatible(self, a: Job, b: Job) -> bool:
        """Return whether two jobs do the same work on the same data."""
        if not self._joins or a.round != b.round or (a.lr != b.lr and not self._mixes):
            return False
        if schema(a.broadcast.replace(a.per_client[0])) != schema(b.broadcast.replace(b.per_client[0])):
            return False
        return self._alike(a.program, b.program)

    def _alike(self, a: ClientProgram, b: ClientProgram) -> bool:
        """Return whether clients of two programs do the same work on the same data, but for their hyperparameters."""
        parts = (*_parts(a), *_parts(b))
        # a method may change itself between rounds
        what = ("alike", a.bf16, b.bf16, settings_digest(a.algorithm), settings_digest(b.algorithm))
        return self._found.once(what, parts, lambda: self._are_alike(a, b))

    def _are_alike(self, a: ClientProgram, b: ClientProgram) -> bool:
        one, other = [(p.bf16, [*map(settings_digest, p.uploads)], _settings(p.task), self._work(p)) for p in (a, b)]
        if one != other:
            return False
        mine, theirs = a.task.model, b.task.model
        if computation_digest(mine) != computation_digest(theirs) or mine.fixed != theirs.fixed:
            return False
        sources = (a.pool, b.pool, a.public, b.public)
        return self._found.once("same data", sources, lambda: _same_data(a, b))

    def _work(self, program: ClientProgram) -> Any:
        """What the clients of a stack must have in common in their algorithm and their local training."""
        if self._mixes:
            return self._described(program)[0]
        return settings_digest(program.algorithm), program.task.local

    def _described(self, program: ClientProgram) -> tuple[str, dict[str, float]]:
        parts = (program.algorithm, program.task)
        what = ("described", settings_digest(program.algorithm))
        return self._found.once(what, parts, lambda: describe(*parts))

    def _merge(self, jobs: list[Job]) -> Job:
        """Merge jobs into one, with what differs between their runs as hyperparameters."""
        merged = merge_jobs(jobs)
        tasks = tuple(job.program.task for job in jobs)
        task = self._found.once("task", tasks, lambda: joint_task(tasks))
        merged = replace(merged, program=replace(merged.program, task=task))
        if not self._mixes:
            return merged
        found = [self._described(job.program)[1] for job in jobs]
        mixed = next((each for each in self._mixed if self._alike(each.program, merged.program)), None)
        if mixed is None:
            self._mixed.append(mixed := _Mixed(merged.program, found[0]))
        mixed.names |= {name for each in found for name, value in each.items() if value != mixed.hyperparameters[name]}
        if any(job.lr != merged.lr for job in jobs):
            mixed.names.add(ROUND_LR)
        if not mixed.names:
            return merged
        own = [
            {name: ({**each, ROUND_LR: job.lr})[name] for name in sorted(mixed.names)}
            for each, job in zip(found, jobs, strict=True)
        ]
        spread = [mine for mine, job in zip(own, jobs, strict=True) for _ in job.clients]
        return replace(merged, program=mixed.program, hyperparameters=spread)


@dataclass
class _Mixed:
    """Runs that differ in hyperparameters; one program serves them all, so that a GPU's graphs are captured once."""

    program: ClientProgram
    hyperparameters: Mapping[str, float]  # of the program
    names: set[str] = field(default_factory=set)  # of those that differ


def merge_jobs(jobs: list[Job]) -> Job:
    """Merge jobs into one, whose broadcasts become part of what each client receives."""
    if len(jobs) == 1:
        return jobs[0]
    asked = [job.compiled for job in jobs if job.compiled is not None]
    return replace(
        jobs[0],
        clients=list(range(sum(len(job.clients) for job in jobs))),
        broadcast=Tree(),
        per_client=[job.broadcast.replace(own) if own else job.broadcast for job in jobs for own in job.per_client],
        states=StackedTrees.joined([job.states for job in jobs]) or [state for job in jobs for state in job.states],
        rows=[rows for job in jobs for rows in job.rows],
        counts=[counts for job in jobs for counts in job.counts],
        schedules=[schedule for job in jobs for schedule in job.schedules],
        compiled=any(asked) if asked else None,  # one stack is compiled or not: where runs differ, it is
        tables=merge_tables(jobs),
    )


def _parts(program: ClientProgram) -> tuple[object, ...]:
    """What a program is made of, but for flags; programs are made anew in every round, of the same parts."""
    return program.algorithm, program.task, program.pool, program.public, program.uploads


def _settings(task: Task) -> tuple[object, ...]:
    """What hooks see of a task beside the model and local training, but for what is of one seed or split."""
    return task.objective, task.classes, task.clients, task.rounds, task.participation, task.min_class_count


def _same_data(a: ClientProgram, b: ClientProgram) -> bool:
    pairs = [(a.pool, b.pool), (a.public, b.public)]
    for mine, theirs in pairs:
        if mine is theirs:
            continue
        if mine is None or theirs is None:
            return False
        if mine.transform != theirs.transform or shape_of(mine.x) != shape_of(theirs.x):
            return False
        pairs_of = zip([*tensors_of(mine.x), mine.y], [*tensors_of(theirs.x), theirs.y], strict=True)
        if not all(torch.equal(one, other) for one, other in pairs_of):
            return False
    return True
