"""Lanes: one CUDA stream per client, all captured in one CUDA graph that forks and joins.

For models that can't be stacked, and for federations of several architectures: clients that share nothing but the GPU
train at the same time. Every lane is a plain step without vectorization on its own static tensors; one graph performs
one or a few steps of every active lane, after which the lanes wait for each other. Steps without padding have their
own graphs, with torch's BatchNorm. A step that is compiled is compiled once per architecture, for all of its lanes.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedhead.algorithm.phase import Reply
from fedhead.core.errors import first_line
from fedhead.core.log import warn_once
from fedhead.executors.client_round import phase_runs
from fedhead.executors.compile import InPlace, compile_step
from fedhead.executors.graphs import (
    StepGraphs,
    cache_key,
    copy_into,
    preparing,
    static_copy,
    without_rows,
)
from fedhead.executors.job import Executor, Job
from fedhead.executors.program import Vectorizer
from fedhead.executors.steps import Carry, PhaseBatches, PhaseRun, draw_batch

STEPS_PER_GRAPH = 4  # each step takes time to capture, for every lane


class Lane:
    """The static tensors and the step of one client."""

    def __init__(self, phase_run: PhaseRun):
        self.step, self.last = phase_run.step, len(phase_run.batches) - 1
        self.carry, self.w, self.inputs, self.batches = static_copy((*phase_run[2:], phase_run.batches[:3]))
        self.counter = torch.zeros((), dtype=torch.int64, device=phase_run.batches.rows.device)
        self.draw = static_copy(self._draw())
        self.key = step_key(phase_run)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def load(self, phase_run: PhaseRun) -> None:
        """Copy the tensors of a round in."""
        copy_into((self.carry, self.w, self.inputs, self.batches), (*phase_run[2:], phase_run.batches[:3]))
        self.counter.zero_()

    def take(self, work: InPlace, arguments: list[Tensor]) -> None:
        """Take one step in place; a lane that is done repeats its last batch, and the result is discarded."""
        with torch.no_grad():
            copy_into(self.draw, self._draw())
        work(*arguments)
        with torch.no_grad():
            self.counter.add_(1)

    def _draw(self) -> tuple[Tensor, Tensor, Tensor]:
        rows, weight, start = self.batches
        return PhaseBatches(rows, weight, start, None).at(self.counter.clamp(max=self.last))

    def flat(self, padded: bool, write: Callable[[Any, Any], None]) -> tuple[InPlace, list[Tensor], int]:
        """Return a step as a function of tensors, those of this lane, and how many of the first ones it changes.

        Args:
            padded: Whether batches may have padding.
            write: Overwrites what the step changes.
        """
        pool = self.step.program.source(self.step.phase.data)
        changed, shape = pytree.tree_flatten(self.carry)
        read, read_shape = pytree.tree_flatten((self.w, self.inputs, self.draw, pool.x, pool.y))

        def function(*tensors: Tensor) -> None:
            carry = pytree.tree_unflatten(list(tensors[: len(changed)]), shape)
            w, inputs, drawn, x, y = pytree.tree_unflatten(list(tensors[len(changed) :]), read_shape)
            data = pool.with_data(x, y)
            step = replace(self.step, program=self.step.program.reading(data, self.step.phase.data))
            batch, key = draw_batch(data, *drawn)
            new = step(carry, w, batch, key, inputs, padded)
            with torch.no_grad():
                write(carry, new)

        return function, [*changed, *read], len(changed)


class CompiledSteps:
    """The compiled steps of lanes, one per architecture and phase, and for batches with and without padding.

    Args:
        wanted: Whether to compile; it ends with the first step that can't be.
    """

    def __init__(self, wanted: bool):
        self.wanted = wanted
        self._steps: dict[tuple[str, bool], InPlace] = {}

    def __call__(self, lane: Lane, padded: bool) -> tuple[InPlace, list[Tensor]]:
        """Return a lane's step, compiled if that is wanted, and its arguments."""
        function, arguments, changed = lane.flat(padded, copy_each if self.wanted else copy_into)
        key = lane.key, padded
        if self.wanted and key not in self._steps:
            try:
                self._steps[key] = compile_step(function, arguments, changed)
            except Exception as error:  # if the compiler fails, the uncompiled step gives the same result
                warn_once(f"the step could not be compiled ({first_line(error)}); continuing without compilation")
                self.wanted = False
        return self._steps.get(key, function), arguments


class LaneGroup:
    """Lanes that run concurrently, most steps first, and the graphs for the first few of them."""

    def __init__(self, work: list[PhaseRun], compiled: CompiledSteps):
        self.lanes = [Lane(phase_run) for phase_run in work]
        self.compiled = compiled
        self.sizes = buckets(len(work))
        self.graphs: dict[tuple[int, bool], StepGraphs] = {}  # by bucket, and whether batches may have padding
        self.preparing = 0.0

    def train(self, work: list[PhaseRun]) -> list[Carry]:
        """Run all steps of all lanes."""
        for lane, phase_run in zip(self.lanes, work, strict=True):
            lane.load(phase_run)
        done: dict[int, Carry] = {}
        for active, padded, steps in active_lanes([_padded(phase_run) for phase_run in work]):
            done |= {k: _copy(self.lanes[k].carry) for k in range(active, len(work)) if k not in done}
            key = bucket(active, self.sizes), padded
            if key not in self.graphs:
                self.graphs[key] = self._prepare(*key)
            self.graphs[key].replay(steps)
        return [done.get(k) or _copy(lane.carry) for k, lane in enumerate(self.lanes)]

    def _prepare(self, size: int, padded: bool) -> StepGraphs:
        lanes = self.lanes[:size]
        with preparing(self):
            before = [(lane.carry, _copy(lane.carry), lane.counter.clone()) for lane in lanes]
            work = [partial(lane.take, *self.compiled(lane, padded)) for lane in lanes]
            for _ in range(2):  # libraries select kernels and allocate workspace in the first calls
                self._fork(work, 1)
            for lane, (carry, values, counter) in zip(lanes, before, strict=True):
                copy_into(carry, values)
                lane.counter.copy_(counter)
        return StepGraphs(self, partial(self._fork, work), steps_per_graph=STEPS_PER_GRAPH)

    def _fork(self, work: Sequence[Callable[[], None]], steps: int) -> None:
        main = torch.cuda.current_stream()
        lanes = self.lanes[: len(work)]
        for lane, take in zip(lanes, work, strict=True):
            lane.stream.wait_stream(main)
            with torch.cuda.stream(lane.stream):
                for _ in range(steps):
                    take()
        for lane in lanes:
            main.wait_stream(lane.stream)


class Lanes(Executor):
    """Runs clients concurrently, one CUDA stream each.

    Args:
        size: Maximum number of lanes at a time.
        max_groups: Maximum number of groups of lanes whose graphs are kept.
        compile: Whether to compile the steps, once per architecture.
    """

    name = "lanes"

    def __init__(self, size: int = 32, max_groups: int = 4, compile: bool = False):
        self.size = size
        self._compiled = CompiledSteps(compile)
        self._groups: OrderedDict[str, LaneGroup] = OrderedDict()
        self._max_groups = max_groups

    def run(self, job: Job) -> list[Reply]:
        """Return the replies in the order of the job's clients."""
        return self.run_all([job])[0]

    def run_all(self, jobs: list[Job]) -> list[list[Reply]]:
        """Return the replies of several jobs, whose clients may differ in architecture."""
        indices = [(j, k) for j, job in enumerate(jobs) for k in range(len(job.clients))]
        replies: dict[tuple[int, int], Reply] = {}
        for begin in range(0, len(indices), self.size):
            part = indices[begin : begin + self.size]
            replies.update(zip(part, self._run_concurrently([(jobs[j], k) for j, k in part]), strict=True))
        return [[replies[j, k] for k in range(len(job.clients))] for j, job in enumerate(jobs)]

    def _run_concurrently(self, clients: list[tuple[Job, int]]) -> list[Reply]:
        """Advance the rounds of all clients from phase to phase, and train each phase concurrently."""
        rounds: dict[int, Generator[PhaseRun, Carry, Reply]] = {}
        replies: dict[int, Reply] = {}
        for index, (job, k) in enumerate(clients):
            program = replace(job.program, channels_last=True)
            rounds[index] = phase_runs(program, job.inputs(k), job.batches(k), Vectorizer())
        outcome: dict[int, Carry | None] = dict.fromkeys(rounds)
        while outcome:
            work: dict[int, PhaseRun] = {}
            for index, carry in outcome.items():
                try:
                    work[index] = next(rounds[index]) if carry is None else rounds[index].send(carry)
                except StopIteration as end:
                    replies[index] = end.value
            outcome = dict(self._train(work))
        return [replies[index] for index in range(len(clients))]

    def _train(self, work: dict[int, PhaseRun]) -> dict[int, Carry]:
        idle = {index: phase_run.carry for index, phase_run in work.items() if not len(phase_run.batches)}
        order = sorted((p for p in work if p not in idle), key=lambda p: (-len(work[p].batches), p))
        if not order:
            return idle
        phases = [without_rows(work[index]) for index in order]
        key = repr([cache_key(phase_run) for phase_run in phases])
        if key not in self._groups:
            self._groups[key] = LaneGroup(phases, self._compiled)
            while len(self._groups) > self._max_groups:
                self._groups.popitem(last=False)
        group = self._groups[key]
        self._groups.move_to_end(key)
        before = group.preparing
        found = group.train(phases)
        self.preparing += group.preparing - before
        return idle | dict(zip(order, found, strict=True))


def copy_each(to: Any, source: Any) -> None:
    """Overwrite tensors one by one, which the compiler fuses with what computes them."""
    for old, value in zip(pytree.tree_leaves(to), pytree.tree_leaves(source), strict=True):
        old.copy_(value)


def step_key(phase_run: PhaseRun) -> str:
    """Return what two lanes must have in common to share a compiled step: all but the number of their batches."""
    first = PhaseBatches(phase_run.batches.rows[:1], *phase_run.batches[1:])
    return cache_key(phase_run._replace(batches=first))


def buckets(width: int) -> list[int]:
    """Return the numbers of lanes for which graphs are captured: all of them, half and a quarter.

    >>> buckets(40), buckets(5), buckets(1)
    ([40, 20, 10], [5, 3, 2], [1])
    """
    return list(dict.fromkeys([width, math.ceil(width / 2), math.ceil(width / 4)]))


def bucket(width: int, sizes: list[int]) -> int:
    """Return the smallest bucket that holds a width."""
    return min(size for size in sizes if size >= width)


def active_lanes(padded: list[list[bool]]) -> list[tuple[int, bool, int]]:
    """Return how many lanes are active, whether one of them has padding, and for how many steps.

    Args:
        padded: Whether each step of each lane has padding, the lane with most steps first.

    >>> active_lanes([[False] * 4, [False, True], [True]])
    [(3, True, 1), (2, True, 1), (1, False, 2)]
    """
    kinds = []
    for step in range(len(padded[0])):
        now = [lane[step] for lane in padded if len(lane) > step]
        kinds.append((len(now), any(now)))
    return [(*kind, len(list(steps))) for kind, steps in itertools.groupby(kinds)]


def _padded(phase_run: PhaseRun) -> list[bool]:
    """Whether each step has padding that its model has to leave out."""
    leaves_out = phase_run.step.program.task.model.may_normalize_batches
    return [leaves_out and padded for padded in phase_run.batches.padded]


def _copy(carry: Carry) -> Carry:
    return Carry(*(tree.clone() for tree in carry))
