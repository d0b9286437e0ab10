"""CUDA graphs: the steps of a stack of clients, captured once and replayed without work on the host.

A runner owns static tensors for everything that a step reads and writes. The clients of a round pass through its slots:
they are copied in when a slot is free and out when they are done, while the steps of the other slots go on. Batches lie
in a table on the device, from which a counter selects the next ones.
"""

from __future__ import annotations

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

from fedhead.core import random
from fedhead.core.cuda_graphs import capture
from fedhead.core.errors import first_line
from fedhead.core.log import warn_once
from fedhead.executors.compile import compile_step
from fedhead.executors.compile_choice import pays_for
from fedhead.executors.slots import Plan, choose_slots, plan
from fedhead.executors.stacked_rows import StackedRows
from fedhead.executors.steps import Carry, PhaseBatches, PhaseRun, draw_batch, rows

TABLE_STEPS = 256  # batches of so many steps lie ready on the device
MAX_PLANS = 16  # of the stacks of a round


class Graphs:
    """A trainer that keeps one runner per kind of stack, up to a maximum number.

    Args:
        compile: Whether to compile the steps; those of a stage only if it takes long enough.
        slots: How many clients train at a time; none: as many as take the least time for the first round.
        max_runners: Maximum number of runners to keep.
    """

    def __init__(self, compile: bool = True, slots: int | None = None, max_runners: int = 6):
        self.compile = compile
        self.slots = slots
        self.preparing = 0.0  # seconds spent on compiling and capturing
        self._runners: OrderedDict[str, GraphRunner] = OrderedDict()
        self._max_runners = max_runners

    def __call__(self, phase_run: PhaseRun) -> Carry:
        """Run all steps of a phase."""
        if not len(phase_run.batches):
            return phase_run.carry
        phase_run = without_rows(phase_run)
        key = slot_key(phase_run)
        runner = self._runners.get(key)
        if runner is None:
            slots = self.slots or choose_slots(phase_run.batches.lengths())
            runner = self._runners[key] = GraphRunner(self, phase_run, slots, self.compile and pays_for(phase_run))
            while len(self._runners) > self._max_runners:
                self._runners.popitem(last=False)
        self._runners.move_to_end(key)
        return runner.train(phase_run)

    def clear(self) -> None:
        """Release all graphs and their memory."""
        self._runners.clear()
        torch.cuda.empty_cache()


class GraphRunner:
    """Static tensors for one kind of stack, and the graphs that work on them.

    Args:
        owner: Counts the seconds of preparation.
        phase_run: A phase to be trained, as an example of those to come.
        slots: How many clients train at a time.
        compile: Whether to compile its steps.
    """

    def __init__(self, owner: Graphs, phase_run: PhaseRun, slots: int, compile: bool = True):
        step, batches, carry, w, inputs = phase_run
        self.owner, self.step, self.slots, self.compile = owner, step, slots, compile
        first = torch.arange(slots, device=batches.key.device) % len(batches.key)
        self.carry = static_copy(rows(carry, first))
        self.w = static_copy(w.map(lambda t: t[first]))
        self.inputs = static_copy(step.vectorizer.take(inputs, first))
        self.key = batches.key[first]
        shape = (TABLE_STEPS, slots, batches.rows.shape[-1])
        self.rows, self.weight = batches.rows.new_zeros(shape), batches.weight.new_zeros(shape)
        self.done = batches.rows.new_zeros(shape[:2])  # how many steps each slot's client has made
        self.counter = torch.zeros((), dtype=torch.int64, device=batches.rows.device)
        self.graphs: StepGraphs | None = None
        self._plans: dict[tuple[int, ...], tuple[Plan, list[Tensor]]] = {}  # by the clients' numbers of steps
        self._outcome = StackedRows(pytree.tree_leaves(self.carry))
        held = self._held(phase_run._replace(w=self.w, inputs=self.inputs), self.key)
        self._slots = StackedRows([*self._outcome.tensors, *held])

    def train(self, phase_run: PhaseRun) -> Carry:
        """Pass the clients of a round through the slots.

        Args:
            phase_run: The phase to be trained.

        Returns:
            What the steps changed, for all clients.
        """
        _, batches, carry, _, inputs = phase_run
        copy_into(self.step.vectorizer.shared(self.inputs), self.step.vectorizer.shared(inputs))
        start = StackedRows([*pytree.tree_leaves(carry), *self._held(phase_run, batches.key)])
        outcome = Carry(*(tree.clone() for tree in carry))
        into = StackedRows(pytree.tree_leaves(outcome))
        schedule, places = self._plan(tuple(batches.lengths()))
        tables = self._fill(schedule, places, batches)
        left = 0  # steps until the table is used up
        for segment in schedule.segments:
            self._slots.copy([turn.slot for turn in segment.enter], start, [turn.client for turn in segment.enter])
            todo = segment.steps
            while todo:
                left = left or next(tables)
                if self.graphs is None:
                    self.graphs = self._prepare()
                now = min(todo, left)
                self.graphs.replay(now)
                todo, left = todo - now, left - now
            into.copy([turn.client for turn in segment.leave], self._outcome, [turn.slot for turn in segment.leave])
        return outcome

    def _plan(self, lengths: tuple[int, ...]) -> tuple[Plan, list[Tensor]]:
        """Return the plan for these numbers of steps, with each slot's client, and its steps, at each step of it.

        Where all clients take part, the plans are those of the last round.
        """
        if lengths not in self._plans:
            made = plan(lengths, self.slots)
            while len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]  # the oldest
            self._plans[lengths] = made, [torch.from_numpy(table).to(self.done.device) for table in made.table()]
        return self._plans[lengths]

    def _fill(self, schedule: Plan, places: list[Tensor], batches: PhaseBatches) -> Iterator[int]:
        """Fill the table with the next steps' batches, again and again; yield how many steps it holds."""
        client, done = places
        for begin in range(0, schedule.steps, TABLE_STEPS):
            part = slice(begin, begin + TABLE_STEPS)
            count = len(done[part])
            self.done[:count] = done[part]
            self.rows[:count] = batches.rows[done[part], client[part]]
            self.weight[:count] = batches.weight[done[part], client[part]]
            self.counter.zero_()
            yield count

    def _held(self, phase_run: PhaseRun, key: Tensor) -> list[Tensor]:
        """Return the tensors, with a client axis, that the steps read and don't change."""
        untrained = [t for name, t in phase_run.w.items() if name not in self.carry.params]
        return [*pytree.tree_leaves(untrained), *self.step.vectorizer.per_client(phase_run.inputs), key]

    # -- capture ----------------------------------------------------------------------------------
    def _prepare(self) -> StepGraphs:
        function, arguments = self._flat()
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
        if self.compile and self.owner.compile:
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

    def _flat(self) -> tuple[Callable[..., None], list[Tensor]]:
        """Return the step as a function of flat tensors that changes the first of them in place."""
        pool = self.step.program.source(self.step.phase.data)
        changed, shape = pytree.tree_flatten((self.carry, self.counter))
        tables = (self.rows, self.weight, self.done)
        read, read_shape = pytree.tree_flatten((self.w, self.inputs, tables, self.key, pool.x, pool.y))
        self._changed = len(changed)

        def function(*flat: Tensor) -> None:
            carry, counter = pytree.tree_unflatten(list(flat[: len(changed)]), shape)
            w, inputs, tables, key, x, y = pytree.tree_unflatten(list(flat[len(changed) :]), read_shape)
            data = pool.with_data(x, y)
            step = replace(self.step, program=self.step.program.reading(data, self.step.phase.data))
            index, weight, done = [table.index_select(0, counter.reshape(1))[0] for table in tables]
            batch, draw = draw_batch(data, index, weight, random.fold_in(key, done))
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


def cache_key(phase_run: PhaseRun) -> str:
    """Return what two phase runs must have in common to share static tensors and graphs."""
    batches = phase_run.batches
    tensors = structure((phase_run.carry, phase_run.w, phase_run.inputs, batches.key))
    return repr((_work(phase_run), batches.rows.shape, tensors))


def slot_key(phase_run: PhaseRun) -> str:
    """Return what two phase runs of stacks must have in common to pass through the same slots."""
    vectorizer, inputs = phase_run.step.vectorizer, phase_run.inputs
    clients = structure((phase_run.carry, phase_run.w, vectorizer.per_client(inputs)), first=1)
    return repr((_work(phase_run), phase_run.batches.rows.shape[2:], clients, structure(vectorizer.shared(inputs))))


def _work(phase_run: PhaseRun) -> tuple[Any, ...]:
    program, phase = phase_run.step.program, phase_run.step.phase
    loss = getattr(phase.loss, "__qualname__", repr(phase.loss))
    who = (id(program.task), repr(program.algorithm), loss, phase.data)
    return (*who, phase_run.step.optimizer, phase_run.step.names)


def static_copy(tree: Any) -> Any:
    """Return a copy with its own memory, for graphs to work on."""
    return pytree.tree_map(lambda t: t.clone(memory_format=torch.contiguous_format), tree)


def copy_into(to: Any, source: Any) -> None:
    """Overwrite the tensors of one structure with those of another of the same structure."""
    a, b = pytree.tree_leaves(to), pytree.tree_leaves(source)
    torch._foreach_copy_(a, b)


def structure(tree: Any, first: int = 0) -> list[tuple[Any, ...]]:
    """Return the shapes from dimension `first` on, the dtypes and the structure of a tree of tensors."""
    leaves, shape = pytree.tree_flatten(tree)
    return [(tuple(t.shape[first:]), t.dtype) for t in leaves] + [(str(shape),)]
