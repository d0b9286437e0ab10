"""A runner: the steps of one kind of stack, captured once as CUDA graphs and replayed without work on the host.

It owns static tensors for everything that a step reads and writes. The clients of a round pass through its slots: they
are copied in when a slot is free and out when they are done, while the steps of the other slots go on. Batches lie in a
table on the device, from which a counter selects the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedhead.algorithm.stage import Stage
from fedhead.core.training import random
from fedhead.core.tree.foreach import copy_all
from fedhead.core.tree.transfer import to_device
from fedhead.executors.client.client_round import Carry, PhaseBatches, PhaseRun, draw_batch, take_clients
from fedhead.executors.compiling.process import CompilerProcess
from fedhead.executors.compiling.step import TensorForm, compile_step, is_known, trace
from fedhead.executors.stack.slots import Plan, plan
from fedhead.executors.stack.step_graphs import Preparer, StepGraphs, copy_each, copy_into, preparing, static_copy

TABLE_STEPS = 256  # batches of so many steps lie ready on the device
MAX_PLANS = 16  # of the stacks of a round


class CompilationPolicy(Preparer, Protocol):
    """Decides when the steps of runners are compiled, and counts the seconds of preparation.

    Attributes:
        compiler: Compiles steps in the background; none: they are compiled before they train.
    """

    compiler: CompilerProcess | None

    def decide_compiled(self, runner: GraphRunner) -> bool:
        """Decide whether a runner's next steps are compiled."""
        ...

    def give_up_compiling(self, error: Exception) -> None:
        """Go on without compilation."""
        ...


class GraphRunner:
    """Static tensors for one kind of stack, and the graphs that work on them.

    Args:
        owner: Decides when its steps are compiled, and counts the seconds of preparation.
        phase_run: A phase to be trained, as an example of those to come.
        slots: How many clients train at a time.
        compile: Whether to compile its steps.
    """

    def __init__(self, owner: CompilationPolicy, phase_run: PhaseRun, slots: int, compile: bool = True):
        step, batches, carry, w, inputs = phase_run
        self.owner, self.step, self.slots, self.compile = owner, step, slots, compile
        self.of_stage = isinstance(step.program.algorithm, Stage)
        first = torch.arange(slots, device=batches.key.device) % len(batches.key)
        self.carry = static_copy(take_clients(carry, first))
        self.w = static_copy(w.map(lambda t: t[first]))
        self.inputs = static_copy(inputs.take(first))
        self.key = batches.key[first]
        shape = (TABLE_STEPS, slots, batches.rows.shape[-1])
        self.rows, self.weight = batches.rows.new_zeros(shape), batches.weight.new_zeros(shape)
        self.done = batches.rows.new_zeros(shape[:2])  # how many steps each slot's client has made
        self.counter = torch.zeros((), dtype=torch.int64, device=batches.rows.device)
        self.graphs: dict[bool, StepGraphs] = {}  # by whether their steps are compiled
        self._compilation: Future[None] | None = None  # in the background
        self._traced: torch.fx.GraphModule | None = None  # until it is compiled
        self._plans: dict[tuple[int, ...], tuple[Plan, list[Tensor]]] = {}  # by the clients' numbers of steps
        self._outcome = StackedRows(_tensors(self.carry))
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
        compiled = self.owner.decide_compiled(self)
        copy_into(self.inputs.shared_tensors(), inputs.shared_tensors())
        schedule, places = self._plan(tuple(batches.lengths()))
        # a client without steps ends as it begins; what the others end with is copied out of their slots
        blank = torch.empty_like if all(batches.lengths()) else torch.clone
        outcome = Carry(*(tree.map(blank) for tree in carry))
        into, held = StackedRows(_tensors(outcome)), self._held(phase_run, batches.key)
        start, paused = StackedRows([*_tensors(carry), *held]), StackedRows([*into.tensors, *held])
        tables = self._fill(schedule, places, batches)
        left = 0  # steps until the table is used up
        for segment in schedule.segments:
            for source, again in ((start, False), (paused, True)):
                turns = [turn for turn in segment.enter if bool(turn.done) == again]
                self._slots.overwrite([turn.slot for turn in turns], source, [turn.client for turn in turns])
            todo = segment.steps
            while todo:
                left = left or next(tables)
                if compiled not in self.graphs:
                    self.graphs[compiled] = self._prepare(compiled)
                now = min(todo, left)
                self.graphs[compiled].replay(now)
                todo, left = todo - now, left - now
            turns = segment.leave
            into.overwrite([turn.client for turn in turns], self._outcome, [turn.slot for turn in turns])
        return outcome

    def _plan(self, lengths: tuple[int, ...]) -> tuple[Plan, list[Tensor]]:
        """Return the plan for these numbers of steps, with each slot's client, and its steps, at each step of it.

        Where all clients take part, the plans are those of the last round.
        """
        if lengths not in self._plans:
            made = plan(lengths, self.slots)
            while len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]  # the oldest
            self._plans[lengths] = made, [to_device(table, self.done.device) for table in made.table()]
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
        return [*untrained, *phase_run.inputs.per_client_tensors(), key]

    # -- compilation ------------------------------------------------------------------------------
    @property
    def ready(self) -> bool:
        """Whether nobody needs to wait for the compiler in the background."""
        return self._compilation is None or self._compilation.done()

    def begin_compiling(self) -> None:
        """Hand the step to the compiler in the background, unless that was done or the step is in the cache."""
        if self.owner.compiler is None or self._traced is not None or True in self.graphs:
            return
        with preparing(self.owner):
            function, arguments = self._flat()
            forms = [TensorForm.of(t) for t in arguments]
            try:
                self._traced = trace(function, arguments)
            except Exception as error:  # whatever a method does that can't be traced
                self.owner.give_up_compiling(error)
                return
            if not is_known(self._traced, forms):
                self._compilation = self.owner.compiler.submit(self._traced, forms)

    def _compiled(self, function: Callable[..., None], arguments: list[Tensor], has_run: bool) -> Callable[..., None]:
        """Return the step compiled, or as it is where the compiler fails."""
        try:
            if self._compilation is not None:
                self._compilation.result()
            return compile_step(function, arguments, self._changed, self._traced, has_run)
        except torch.OutOfMemoryError:
            raise  # a smaller stack may have room
        except Exception as error:  # if the compiler fails, the uncompiled step gives the same result
            self.owner.give_up_compiling(error)
            return function
        finally:
            self._traced = self._compilation = None

    # -- capture ----------------------------------------------------------------------------------
    def _prepare(self, compiled: bool) -> StepGraphs:
        function, arguments = self._flat()
        with preparing(self.owner):
            has_run = bool(self.graphs)
            self.graphs.clear()  # for their memory
            call = self._compiled(function, arguments, has_run) if compiled else function
            self._warm_up(call, arguments)

        def work(steps: int) -> None:
            for _ in range(steps):
                call(*arguments)

        return StepGraphs(self.owner, work)

    def _warm_up(self, call: Callable[..., None], arguments: list[Tensor]) -> None:
        """Call the step, and undo what it changes."""
        before = [t.clone() for t in arguments[: self._changed]]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries select kernels and allocate workspace in the first calls
                call(*arguments)
        torch.cuda.current_stream().wait_stream(side)
        for t, value in zip(arguments, before, strict=False):
            t.copy_(value)

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
            copy_each(carry, new)
            counter.add_(1)

        return function, [*changed, *read]


def _tensors(carry: Carry) -> list[Tensor]:
    """Return all tensors of a carry, always in the same order."""
    return [t for tree in carry for t in tree.tensors()]


FEW = 8  # rows; up to so many are copied by one kernel per dtype, more of them by two kernels per tensor


class StackedRows:
    """Tensors with a leading client axis, of whose rows some are overwritten at a time.

    Args:
        tensors: The tensors, of equal length.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = list(tensors)
        self._views: dict[int, list[Tensor]] = {}  # of single rows; to make those of all rows takes a host long

    def _row(self, row: int) -> list[Tensor]:
        if row not in self._views:
            self._views[row] = [t[row] for t in self.tensors]
        return self._views[row]

    def overwrite(self, rows: Sequence[int], source: StackedRows, of: Sequence[int]) -> None:
        """Overwrite some rows of all tensors.

        Args:
            rows: Rows to overwrite, each once.
            source: Tensors of the same shapes and types but for their length.
            of: Rows of `source` to copy, one for each of `rows`.
        """
        if not self.tensors or not rows:
            return
        every = list(range(len(self.tensors[0])))
        pairs = sorted(zip(rows, of, strict=True))
        rows, of = [row for row, _ in pairs], [other for _, other in pairs]
        if rows == of == every and len(source.tensors[0]) == len(every):
            copy_all(zip(self.tensors, source.tensors, strict=True))
        elif rows == every:
            at = to_device(of, self.tensors[0].device)
            for mine, theirs in zip(self.tensors, source.tensors, strict=True):
                torch.index_select(theirs, 0, at, out=mine)
        elif len(rows) > FEW:
            to, at = (to_device(places, self.tensors[0].device) for places in (rows, of))
            for mine, theirs in zip(self.tensors, source.tensors, strict=True):
                mine.index_copy_(0, to, theirs.index_select(0, at))
        else:
            copy_all(pair for row, other in pairs for pair in zip(self._row(row), source._row(other), strict=True))
