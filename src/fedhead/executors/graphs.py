"""CUDA graphs: the steps of a stack of clients, captured once and replayed without work on the host.

A runner owns static tensors for everything that a step reads and writes, including all batches; a counter on the device
selects the next batch. One graph serves a bucket of widths: when fewer clients are active, those that are done are
copied out, and the steps continue at the next smaller bucket. Rows between the width and the bucket are computed and
discarded.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedhead.core import amounts
from fedhead.core.cuda_graphs import capture
from fedhead.core.errors import first_line
from fedhead.core.log import warn_once
from fedhead.executors.compile import compile_step
from fedhead.executors.steps import Carry, PhaseBatches, PhaseRun, Step, join, rows


def buckets(width: int, least: int = 8) -> list[int]:
    """Return the widths for which graphs are captured: the whole stack, half of it and a quarter, if at least `least`.

    Each costs a compilation, and a small stack is hardly faster than one twice its size.

    >>> buckets(40), buckets(20), buckets(10)
    ([40, 20, 10], [20, 10], [10])
    """
    halves = [math.ceil(width / 2), math.ceil(width / 4)]
    return [width, *(half for half in dict.fromkeys(halves) if least <= half < width)]


def bucket(width: int, sizes: list[int]) -> int:
    """Return the smallest bucket that holds a width."""
    return min(size for size in sizes if size >= width)


class Graphs:
    """A trainer that keeps one runner per kind of stack, up to a maximum number.

    Args:
        compile: Whether to compile the steps.
        max_runners: Maximum number of runners to keep.
    """

    def __init__(self, compile: bool = True, max_runners: int = 6):
        self.compile = compile
        self.preparing = 0.0  # seconds spent on compiling and capturing
        self._runners: OrderedDict[Any, GraphRunner] = OrderedDict()
        self._max_runners = max_runners

    def __call__(self, phase_run: PhaseRun) -> Carry:
        """Run all steps of a phase."""
        if not len(phase_run.batches):
            return phase_run.carry
        phase_run = without_rows(phase_run)
        key = cache_key(phase_run, steps=False)
        runner = self._runners.get(key)
        if runner is None or runner.capacity < len(phase_run.batches):
            runner = self._runners[key] = GraphRunner(self, phase_run)
            while len(self._runners) > self._max_runners:
                self._runners.popitem(last=False)
        self._runners.move_to_end(key)
        return runner.train(phase_run)

    def clear(self) -> None:
        """Release all graphs and their memory."""
        self._runners.clear()
        torch.cuda.empty_cache()


class GraphRunner:
    """Static tensors for one kind of stack, and the graphs that work on them."""

    def __init__(self, owner: Graphs, phase_run: PhaseRun):
        step, batches, carry, w, inputs = phase_run
        self.owner, self.step = owner, step
        self.capacity = max(len(batches), _most_steps(step))
        self.carry, self.w, self.inputs, self.key = static_copy((carry, w, inputs, batches.key))
        shape = (self.capacity, *batches.rows.shape[1:])
        self.rows, self.weight = batches.rows.new_zeros(shape), batches.weight.new_zeros(shape)
        self.counter = torch.zeros((), dtype=torch.int64, device=batches.rows.device)
        self.sizes = buckets(len(batches.key))
        self.graphs: dict[int, StepGraphs] = {}  # by bucket

    def train(self, phase_run: PhaseRun) -> Carry:
        """Copy the tensors of a round in, replay its steps, copy the outcome out."""
        _, batches, carry, w, inputs = phase_run
        copy_into((self.carry, self.w, self.inputs, self.key), (carry, w, inputs, batches.key))
        self.rows[: len(batches)].copy_(batches.rows)
        self.weight[: len(batches)].copy_(batches.weight)
        self.counter.zero_()
        assert batches.widths is not None, "a stack has widths"
        done, width = [], len(batches.key)
        for now, steps in itertools.groupby(batches.widths):
            if now < width:
                done.append(_clone(rows(self.carry, slice(now, width))))
                width = now
            size = bucket(width, self.sizes)
            if size not in self.graphs:
                self.graphs[size] = self._prepare(size)
            self.graphs[size].replay(len(list(steps)))
        return join([_clone(rows(self.carry, slice(0, width))), *reversed(done)])

    # -- capture ----------------------------------------------------------------------------------
    def _prepare(self, size: int) -> StepGraphs:
        function, arguments = self._flat(size)
        with preparing(self.owner):
            call = self._warm_up(function, arguments)

        def work(steps: int) -> None:
            for _ in range(steps):
                call(*arguments)

        return StepGraphs(self.owner, work)

    def _warm_up(self, function: Callable[..., None], arguments: list[Tensor]) -> Callable[..., None]:
        """Return the step, compiled if requested, after warm-up calls whose changes are undone."""
        before = [t.clone() for t in arguments[: self._changed]]
        call = function
        if self.owner.compile:
            try:
                call = compile_step(function, arguments, self._changed)
            except Exception as error:  # if the compiler fails, the uncompiled step gives the same result
                warn_once(f"the step could not be compiled ({first_line(error)}); continuing without compilation")
                self.owner.compile = False
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries select kernels and allocate workspace in the first calls
                call(*arguments)
        torch.cuda.current_stream().wait_stream(side)
        for t, value in zip(arguments, before, strict=False):
            t.copy_(value)
        return call

    def _flat(self, size: int) -> tuple[Callable[..., None], list[Tensor]]:
        """Return the step as a function of flat tensors that changes the first of them in place."""
        first = slice(0, size)
        carry, w = rows(self.carry, first), self.w.map(lambda t: t[:size])
        inputs = self.step.vectorizer.narrow(self.inputs, size)
        pool = self.step.program.source(self.step.phase.data)
        changed, shape = pytree.tree_flatten((carry, self.counter))
        read, read_shape = pytree.tree_flatten((w, inputs, self.rows, self.weight, self.key, pool.x, pool.y))
        self._changed = len(changed)

        def function(*flat: Tensor) -> None:
            carry, counter = pytree.tree_unflatten(list(flat[: len(changed)]), shape)
            w, inputs, index, weight, key, x, y = pytree.tree_unflatten(list(flat[len(changed) :]), read_shape)
            data = pool.with_data(x, y)
            step = replace(self.step, program=self.step.program.reading(data, self.step.phase.data))
            batch, draw = PhaseBatches(index, weight, key, None).batch(counter, data, size)
            new = step(carry, w, batch, draw, inputs)
            for old, value in zip(pytree.tree_leaves(carry), pytree.tree_leaves(new), strict=True):
                old.copy_(value)
            counter.add_(1)

        return function, [*changed, *read]


class Preparer(Protocol):
    """An object that counts the seconds spent on preparation."""

    preparing: float


class StepGraphs:
    """Graphs of one step and of several steps: a GPU idles longer between two graphs than between two kernels."""

    def __init__(self, owner: Preparer, work: Callable[[int], None], steps_per_graph: int = 8):
        self.owner, self.work, self.steps_per_graph = owner, work, steps_per_graph
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}  # by number of steps

    def replay(self, count: int) -> None:
        """Replay `count` steps; the time for capturing is added to the owner's `preparing`."""
        for steps, times in ((self.steps_per_graph, count // self.steps_per_graph), (1, count % self.steps_per_graph)):
            if times and steps not in self.graphs:
                with preparing(self.owner):
                    self.graphs[steps] = capture(partial(self.work, steps))
            for _ in range(times):
                self.graphs[steps].replay()


@contextmanager
def preparing(owner: Preparer) -> Iterator[None]:
    """Add the time spent in this context to the owner's preparation, without work that was queued before."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    yield
    torch.cuda.synchronize()
    owner.preparing += time.perf_counter() - begin


def without_rows(phase_run: PhaseRun) -> PhaseRun:
    """Drop the clients' lists of rows, which differ in length: a step only uses its batch."""
    inputs = phase_run.inputs
    return phase_run._replace(inputs=inputs._replace(rows=inputs.rows[..., :0], mask=inputs.mask[..., :0]))


def cache_key(phase_run: PhaseRun, steps: bool = True) -> str:
    """Return what two phase runs must have in common to share static tensors and graphs."""
    program, batches = phase_run.step.program, phase_run.batches
    shape = batches.rows.shape if steps else batches.rows.shape[1:]
    tensors = structure((phase_run.carry, phase_run.w, phase_run.inputs, batches.key))
    phase = phase_run.step.phase
    who = (id(program.task), repr(program.algorithm), getattr(phase.loss, "__qualname__", repr(phase.loss)), phase.data)
    return repr((who, phase_run.step.optimizer, phase_run.step.names, shape, tensors))


def _most_steps(step: Step) -> int:
    """Return the steps of the largest client, so that one runner serves every cohort."""
    task, phase = step.program.task, step.phase
    if phase.data != "private" or not task.sizes:
        return 0
    size = phase.batch_size or task.local.batch_size
    if phase.epochs is None and task.local.steps is not None:
        return amounts.largest(task.local.steps)
    return math.ceil(max(task.sizes) / size) * (phase.epochs or amounts.largest(task.local.epochs))


def static_copy(tree: Any) -> Any:
    """Return a copy with its own memory, for graphs to work on."""
    return pytree.tree_map(lambda t: t.clone(memory_format=torch.contiguous_format), tree)


def _clone(carry: Carry) -> Carry:
    return Carry(*(tree.clone() for tree in carry))


def copy_into(to: Any, source: Any) -> None:
    """Overwrite the tensors of one structure with those of another of the same structure."""
    a, b = pytree.tree_leaves(to), pytree.tree_leaves(source)
    torch._foreach_copy_(a, b)


def structure(tree: Any) -> list[tuple[Any, ...]]:
    """Return the shapes, dtypes and structure of a tree of tensors."""
    leaves, shape = pytree.tree_flatten(tree)
    return [(tuple(t.shape), t.dtype) for t in leaves] + [(str(shape),)]
