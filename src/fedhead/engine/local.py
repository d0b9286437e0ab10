"""One client's round as pure functions, and the loop over its steps.

The functions of `Program` are written for one client. An executor lifts them: the plain loop calls them as they
are, the stack maps them over a leading client axis. Everything else here (gathering batches, the gradient, the
optimiser) works on tensors with or without that axis, so both executors share this file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedhead.client import Client, Sight
from fedhead.data.pool import Pool
from fedhead.engine.steps import Carry, Step, Stretch, Table, Trainer, channels_last, train_eagerly
from fedhead.method import Exchange, Method
from fedhead.optim import Optimizer
from fedhead.tree import Tree, Weights
from fedhead.types import Batch, Phase, Reply, Task

OPTIMIZER = "~optimizer"  # where a client's state keeps its optimiser, if that survives the round


@dataclass(frozen=True)
class Program:
    """What the clients of one architecture do in an exchange; every method here is written for one client."""

    exchange: Exchange
    task: Task
    pool: Pool
    public: Pool | None = None
    chunk: int = 256  # samples at a time where a hook runs over all of a client's data
    bf16: bool = False
    channels_last: bool = False
    in_place: bool = False  # whether a step writes over the weights that the step before it made
    corrects: bool = field(init=False)
    persistent: bool = field(init=False)  # stages start their optimisers afresh

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrects", type(self.exchange).correct is not Exchange.correct)
        object.__setattr__(self, "persistent", self.task.local.persistent and isinstance(self.exchange, Method))

    def me(self, sight: Sight, key: Tensor | None = None, data: str = "private") -> Client:
        """The client behind these tensors."""
        return Client(self.task, sight, self.source(data), self.chunk, self.bf16, key, self.public)

    def source(self, data: str) -> Pool:
        """The pool that a phase trains on."""
        pool = self.pool if data == "private" else self.public
        assert pool is not None, "checked when the run was set up"
        return pool

    def reading(self, pool: Pool, data: str) -> Program:
        """The same program with another pool behind one kind of data."""
        return replace(self, pool=pool) if data == "private" else replace(self, public=pool)

    def start(self, sight: Sight) -> Weights:
        """The weights before the first step."""
        return self.exchange.start(self.me(sight))

    def finish(self, w: Weights, sight: Sight) -> Reply:
        """What is sent and kept after the last step."""
        return self.exchange.finish(w, self.me(sight))

    def correct(self, g: Tree, sight: Sight) -> Tree:
        """The gradient that the optimiser sees."""
        return self.exchange.correct(g, self.me(sight))

    def loss(self, phase: Phase) -> Callable[[Tree, Weights, Batch, Tensor, Sight], tuple[Tensor, Tree]]:
        """The phase's loss as a function of what it trains, with the running statistics that it moved."""

        def loss(params: Tree, w: Weights, batch: Batch, key: Tensor, sight: Sight) -> tuple[Tensor, Tree]:
            me = self.me(sight, key, phase.data)
            value = phase.loss(w.replace(params), batch, me)
            return value, w.stats if me.moved_stats is None else me.moved_stats

        return loss


class Lift:
    """How functions of one client are carried over to many: here not at all, one client at a time."""

    def start(self, program: Program) -> Callable[[Sight], Weights]:
        """`Program.start` for this executor."""
        return program.start

    def finish(self, program: Program) -> Callable[[Weights, Sight], Reply]:
        """`Program.finish` for this executor."""
        return program.finish

    def correct(self, program: Program) -> Callable[[Tree, Sight], Tree]:
        """`Program.correct` for this executor."""
        return program.correct

    def loss(self, program: Program, phase: Phase) -> Callable[..., tuple[Tensor, Tree]]:
        """`Program.loss` for this executor."""
        return program.loss(phase)

    def init(self, optimizer: Optimizer) -> Callable[[Tree], Tree]:
        """`Optimizer.init` for this executor."""
        return optimizer.init

    def narrow(self, sight: Sight, width: int) -> Sight:
        """The first clients of a stack."""
        raise AssertionError("one client has no width")


def stretches(program: Program, sight: Sight, tables: list[Table], lift: Lift) -> Generator[Stretch, Carry, Reply]:
    """A client's round, or a stack's: hands out each phase to be trained, is sent its outcome, returns the reply."""
    with torch.no_grad():
        w = lift.start(program)(sight)
    if program.channels_last:
        w = w.map(channels_last)
    kept: dict[str, Any] = {}
    for number, (phase, table) in enumerate(zip(program.exchange.phases(program.task), tables, strict=True)):
        model = w if phase.on == "model" else sight.state[phase.on]
        optimizer = phase.optimizer or program.task.local.optimizer
        step = Step(program, phase, optimizer, lift, trained(model, phase, program.task.model.fixed))
        carry = step.begin(model, sight.state[OPTIMIZER][str(number)] if program.persistent else None)
        carry = yield Stretch(step, table, carry, model, sight)
        model, kept[str(number)] = model.replace({**carry.stats, **carry.params}), carry.opt
        if phase.on == "model":
            w = model
        else:
            sight = sight._replace(state=sight.state.replace({phase.on: model}))
        if phase.saves is not None:
            sight = sight._replace(state=sight.state.replace({phase.saves: model.part(*phase.trains)}))
    with torch.no_grad():
        reply = lift.finish(program)(w, sight)
    if program.persistent and kept:
        reply = reply._replace(keep=reply.keep.replace({OPTIMIZER: Tree(kept)}))
    return reply


def local_round(
    program: Program, sight: Sight, tables: list[Table], lift: Lift, train: Trainer = train_eagerly
) -> Reply:
    """A client's round, or a stack's, phase after phase."""
    work = stretches(program, sight, tables, lift)
    try:
        stretch = next(work)
        while True:
            stretch = work.send(train(stretch))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value arrives untyped


def initial_optimizers(method: Method, task: Task, w: Weights, state: Tree) -> Tree:
    """The optimisers' state of a client before its first round, a phase each."""
    kept = {}
    w = w.replace(method.init_server(w, task).get("model"))  # a method may train more than the model has
    for number, phase in enumerate(method.phases(task)):
        # the order of the names is that of Method.start: what the client owns comes first
        model = state.get("own", Weights()).replace(w) if phase.on == "model" else state[phase.on]
        params = Tree({name: model[name] for name in trained(model, phase, task.model.fixed)})
        kept[str(number)] = (phase.optimizer or task.local.optimizer).init(params)
    return Tree(kept)


def trained(w: Weights, phase: Phase, fixed: frozenset[str]) -> list[str]:
    """The names that a phase trains: what lies under its prefixes, less what the head fixes unless named in full."""
    under = w.part(*phase.trains).params
    return [name for name in under if name not in fixed or name in phase.trains]
