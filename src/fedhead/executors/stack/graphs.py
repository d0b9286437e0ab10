"""Compilation policy of stacks, and a cache of their CUDA graphs."""

from __future__ import annotations

from collections import OrderedDict

import torch

from fedhead.executors.client.client_round import Carry, PhaseRun
from fedhead.executors.compiling.choice import pays_for
from fedhead.executors.compiling.process import CompilerProcess
from fedhead.executors.compiling.step import warn_not_compiled
from fedhead.executors.stack.graph_runner import GraphRunner
from fedhead.executors.stack.slots import choose_slots
from fedhead.executors.stack.step_graphs import slot_key, without_rows

MAX_RUNNERS = 6  # cached runners, with their static tensors and graphs


class Graphs:
    """Trainer that caches one graph runner per kind of stack.

    With a background compiler, training starts with uncompiled steps. All steps of a method switch to compiled ones
    together, at the beginning of a round. Steps in the compiler's cache on disk are compiled from the start.

    Args:
        compile: Whether to compile the steps; those of a stage only if it is long enough.
        slots: Number of clients that train at a time; None: the fastest number for the first round.
        compiler: Background compiler; None: steps are compiled before training.
    """

    def __init__(self, compile: bool = True, slots: int | None = None, compiler: CompilerProcess | None = None):
        self.compile = compile
        self.slots = slots
        self.compiler = compiler
        self.compile_seconds = 0.0  # seconds spent on compiling and capturing
        self._runners: OrderedDict[str, GraphRunner] = OrderedDict()
        self._round: int | None = None
        self._compiled: bool | None = None  # None: not decided in this round

    @property
    def compiled(self) -> bool:
        """True if the method's steps are compiled in this round."""
        return self.compile and self._compiled is True

    def begin_round(self, number: int, compiled: bool | None = None) -> None:
        """Decide whether the method's steps are compiled in this round.

        Args:
            number: Round number; further calls with the same number have no effect.
            compiled: Forced decision; None: compiled if all compilations have finished.
        """
        if number == self._round:
            return
        self._round, self._compiled = number, compiled
        runners = [runner for runner in self._runners.values() if runner.compile and not runner.of_stage]
        if compiled is None and runners:
            self._compiled = all(runner.ready for runner in runners)

    def decide_compiled(self, runner: GraphRunner) -> bool:
        """Decide whether a runner's next steps are compiled; the first call starts the compilation."""
        if not (self.compile and runner.compile):
            return False
        decided = None if runner.of_stage else self._compiled
        if not decided:
            runner.begin_compiling()
        if decided is None:
            decided = runner.ready
        if not runner.of_stage:
            self._compiled = decided
        return decided and self.compile

    def give_up_compiling(self, error: Exception) -> None:
        """Continue without compilation, with the same result."""
        warn_not_compiled(error)
        self.compile = False

    def __call__(self, phase_run: PhaseRun) -> Carry:
        """Train all steps of a phase."""
        if not len(phase_run.batches):
            return phase_run.carry
        phase_run = without_rows(phase_run)
        key = slot_key(phase_run)
        runner = self._runners.get(key)
        if runner is None:
            slots = self.slots or choose_slots(phase_run.batches.lengths())
            runner = self._runners[key] = GraphRunner(self, phase_run, slots, self.compile and pays_for(phase_run))
            while len(self._runners) > MAX_RUNNERS:
                self._runners.popitem(last=False)
        self._runners.move_to_end(key)
        return runner.train(phase_run)

    def clear(self) -> None:
        """Release all graphs and their memory."""
        self._runners.clear()
        torch.cuda.empty_cache()
