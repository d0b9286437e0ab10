"""Graph runner: captures the steps of a stack once as CUDA graphs, and replays them with little work on the host.

A runner owns static tensors for all inputs and outputs of a step. The clients of a round pass through its slots: a
client is copied into a free slot and out of it after its last step, while the other slots continue. Batches are read
from a table on the device, indexed by a counter.
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
from fedhead.executors.stack.step_graphs import CompileTimer, StepGraphs, compiling, copy_each, copy_into, static_copy

TABLE_STEPS = 256  # steps whose batches are in the table on the device
MAX_PLANS = 16  # cached plans


class CompilationPolicy(CompileTimer, Protocol):
    """Policy that decides when steps are compiled, and counts the compile time.

    Attributes:
        compiler: Background compiler; None: steps are compiled before training.
    """

    compiler: CompilerProcess | None

    def decide_compiled(self, runner: GraphRunner) -> bool:
        """Decide whether a runner's next steps are compiled."""
        ...

    def give_up_compiling(self, error: Exception) -> None:
        """Continue without compilation."""
        ...


class GraphRunner:
    """Static tensors of a stack, and the CUDA graphs that use them.

    Args:
        owner: Compilation policy.
        phase_run: Example of the phases to train.
        slots: Number of clients that train at a time.
        compile: Whether to compile the steps.
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
        shape = (TABLE_STEPS, slots, batches.indices.shape[-1])
        self.indices, self.weight = batches.indices.new_zeros(shape), batches.weight.new_zeros(shape)
        self.done = batches.indices.new_zeros(shape[:2])  # completed steps of each slot's client
        self.counter = torch.zeros((), dtype=torch.int64, device=batches.indices.device)
        self.graphs: dict[bool, StepGraphs] = {}  # keyed by whether the steps are compiled
        self._compilation: Future[None] | None = None  # background compilation
        self._traced: torch.fx.GraphModule | None = None  # traced step, until it is compiled
        self._plans: dict[tuple[int, ...], tuple[Plan, list[Tensor]]] = {}  # keyed by the clients' numbers of steps
        self._outcome = StackedRows(_tensors(self.carry))
        fixed = self._fixed(phase_run._replace(w=self.w, inputs=self.inputs), self.key)
        self._slots = StackedRows([*self._outcome.tensors, *fixed])

    def train(self, phase_run: PhaseRun) -> Carry:
        """Train the clients of a round.

        Args:
            phase_run: Phase to train.

        Returns:
            Carry of all clients after their last steps.
        """
        _, batches, carry, _, inputs = phase_run
        compiled = self.owner.decide_compiled(self)
        copy_into(self.inputs.shared_tensors(), inputs.shared_tensors())
        schedule, places = self._plan(tuple(batches.lengths()))
        # clients without steps keep their initial values; the rows of all others are overwritten
        blank = torch.empty_like if all(batches.lengths()) else torch.clone
        outcome = Carry(*(tree.map(blank) for tree in carry))
        into, fixed = StackedRows(_tensors(outcome)), self._fixed(phase_run, batches.key)
        start, paused = StackedRows([*_tensors(carry), *fixed]), StackedRows([*into.tensors, *fixed])
        tables = self._fill(schedule, places, batches)
        left = 0  # steps left in the table
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
        """Return the plan for these numbers of steps, and its tables of clients and completed steps per slot.

        Cached: with full participation every round has the same plan.
        """
        if lengths not in self._plans:
            schedule = plan(lengths, self.slots)
            while len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]  # the oldest
            self._plans[lengths] = schedule, [to_device(table, self.done.device) for table in schedule.table()]
        return self._plans[lengths]

    def _fill(self, schedule: Plan, places: list[Tensor], batches: PhaseBatches) -> Iterator[int]:
        """Fill the table with the batches of the next steps, repeatedly; yield the number of steps in it."""
        client, done = places
        for begin in range(0, schedule.steps, TABLE_STEPS):
            part = slice(begin, begin + TABLE_STEPS)
            count = len(done[part])
            self.done[:count] = done[part]
            self.indices[:count] = batches.indices[done[part], client[part]]
            self.weight[:count] = batches.weight[done[part], client[part]]
            self.counter.zero_()
            yield count

    def _fixed(self, phase_run: PhaseRun, key: Tensor) -> list[Tensor]:
        """Return the tensors with a client axis that the steps only read."""
        untrained = [t for name, t in phase_run.w.items() if name not in self.carry.params]
        return [*untrained, *phase_run.inputs.per_client_tensors(), key]

    # -- compilation ------------------------------------------------------------------------------
    @property
    def ready(self) -> bool:
        """True unless a background compilation is pending."""
        return self._compilation is None or self._compilation.done()

    def begin_compiling(self) -> None:
        """Submit the step to the background compiler, unless it was submitted or is cached."""
        if self.owner.compiler is None or self._traced is not None or True in self.graphs:
            return
        with compiling(self.owner):
            function, arguments = self._flat()
            forms = [TensorForm.of(t) for t in arguments]
            try:
                self._traced = trace(function, arguments)
            except Exception as error:  # a method's code may raise anything while it is traced
                self.owner.give_up_compiling(error)
                return
            if not is_known(self._traced, forms):
                self._compilation = self.owner.compiler.submit(self._traced, forms)

    def _compiled(self, function: Callable[..., None], arguments: list[Tensor], has_run: bool) -> Callable[..., None]:
        """Compile the step; return it unchanged if the compiler fails."""
        try:
            if self._compilation is not None:
                self._compilation.result()
            return compile_step(function, arguments, self._changed, self._traced, has_run)
        except torch.OutOfMemoryError:
            raise  # a smaller stack may fit
        except Exception as error:  # if the compiler fails, the uncompiled step gives the same result
            self.owner.give_up_compiling(error)
            return function
        finally:
            self._traced = self._compilation = None

    # -- capture ----------------------------------------------------------------------------------
    def _prepare(self, compiled: bool) -> StepGraphs:
        function, arguments = self._flat()
        with compiling(self.owner):
            has_run = bool(self.graphs)
            self.graphs.clear()  # frees their memory
            call = self._compiled(function, arguments, has_run) if compiled else function
            self._warm_up(call, arguments)

        def work(steps: int) -> None:
            for _ in range(steps):
                call(*arguments)

        return StepGraphs(self.owner, work)

    def _warm_up(self, call: Callable[..., None], arguments: list[Tensor]) -> None:
        """Call the step, then restore the tensors that it changed."""
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
        """Return the step as a function of a flat list of tensors, and these tensors; leading ones change in place."""
        pool = self.step.program.source(self.step.phase.data)
        changed, shape = pytree.tree_flatten((self.carry, self.counter))
        tables = (self.indices, self.weight, self.done)
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
    """Return all tensors of a carry in a fixed order."""
    return [t for tree in carry for t in tree.tensors()]


FEW = 8  # up to this many rows are copied by one kernel per dtype, more rows by two kernels per tensor


class StackedRows:
    """Tensors with a leading client axis, whose rows can be overwritten.

    Args:
        tensors: Tensors of equal length.
    """

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = list(tensors)
        self._views: dict[int, list[Tensor]] = {}  # views of rows; created lazily, since creating all is slow

    def _row(self, row: int) -> list[Tensor]:
        if row not in self._views:
            self._views[row] = [t[row] for t in self.tensors]
        return self._views[row]

    def overwrite(self, rows: Sequence[int], source: StackedRows, of: Sequence[int]) -> None:
        """Overwrite some rows of all tensors.

        Args:
            rows: Rows to overwrite, each once.
            source: Tensors of the same shapes and dtypes, except for their length.
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
