"""One client's round as pure functions, and the loop over its steps.

The functions of `Program` are written for one client. An executor lifts them: the plain loop calls them as they
are, the stack maps them over a leading client axis. Everything else here (gathering batches, the gradient, the
optimiser) works on tensors with or without that axis, so both executors share this file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedhead import keyed
from fedhead.client import Client, Sight
from fedhead.data.pool import Pool
from fedhead.method import Exchange, Method
from fedhead.optim import Optimizer
from fedhead.tree import Tree, Weights
from fedhead.types import Batch, Phase, Reply, Task

OPTIMIZER = "~optimizer"  # where a client's state keeps its optimiser, if that survives the round


class Table(NamedTuple):
    """The batches of a phase: rows and weights a step, and the key that augmentation and dropout draw from."""

    index: Tensor  # [steps, (K,) batch]
    weight: Tensor  # [steps, (K,) batch]
    key: Tensor  # [(K)]
    widths: list[int] | None  # a step's active clients, longest first; None without a client axis

    def batch(self, step: int, pool: Pool) -> tuple[Batch, Tensor]:
        """The batch of a step and the key for what the model draws in it."""
        width = None if self.widths is None else self.widths[step]
        index, weight, key = self.index[step], self.weight[step], keyed.fold(self.key, step)
        if width is not None:
            index, weight, key = index[:width], weight[:width], key[:width]
        if not pool.transform.augment:
            return pool.batch(index, weight), key
        place = torch.arange(index.shape[-1], device=index.device)
        return pool.batch(index, weight, keyed.fold(key.unsqueeze(-1), place)), keyed.fold(key, 1 << 20)

    def __len__(self) -> int:
        return len(self.index)


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


def local_round(program: Program, sight: Sight, tables: list[Table], lift: Lift) -> Reply:
    """All phases of a client's round, or of a stack of clients'."""
    with torch.no_grad():
        w = lift.start(program)(sight)
    if program.channels_last:
        w = w.map(_channels_last)
    kept: dict[str, Any] = {}
    for number, (phase, table) in enumerate(zip(program.exchange.phases(program.task), tables, strict=True)):
        model = w if phase.on == "model" else sight.state[phase.on]
        model, kept[str(number)] = _train(program, phase, table, lift, model, sight, number)
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


def _train(
    program: Program, phase: Phase, table: Table, lift: Lift, w: Weights, sight: Sight, number: int
) -> tuple[Weights, Tree]:
    optimizer = phase.optimizer or program.task.local.optimizer
    # A phase with an optimiser of its own decays along with the run's: me.lr is lr · decay^(round − 1).
    lr = sight.lr * (optimizer.lr / program.task.local.optimizer.lr)
    names = trained(w, phase, program.task.model.fixed)
    params = Tree({name: w[name] for name in names})
    loss, pool = lift.loss(program, phase), program.source(phase.data)
    correct = lift.correct(program) if program.corrects and phase.corrects else None
    opt = sight.state[OPTIMIZER][str(number)] if program.persistent else lift.init(optimizer)(params)
    done: list[tuple[Tree, Weights, Tree]] = []  # the clients that ran out of batches, last ones first
    width = None if table.widths is None else len(table.key)
    for step in range(len(table)):
        if width is not None and table.widths is not None and table.widths[step] < width:
            narrow, cut = table.widths[step], slice(table.widths[step], width)
            done.append((_rows(params, cut), _rows(w, cut), _rows(opt, cut)))
            first = slice(0, narrow)
            params, w, opt, sight = _rows(params, first), _rows(w, first), _rows(opt, first), lift.narrow(sight, narrow)
            width = narrow
        batch, key = table.batch(step, pool)
        if program.channels_last:
            batch = batch._replace(x=_channels_last(batch.x))
        leaves = params.map(lambda t: t.detach().requires_grad_())
        with torch.enable_grad():
            losses, stats = loss(leaves, w, batch, key, sight)
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            g = Tree(zip(names, grads, strict=True))
            g = g if correct is None else correct(g, sight)
            params, opt = optimizer.step(params, g, opt, lr)
            w = w.replace(stats.detach())
    w = w.replace(params)
    for tail, rest, state in reversed(done):
        w, opt = w.map(_join, rest.replace(tail)), opt.map(_join, state)
    return w, opt


def _rows(tree: Any, rows: slice) -> Any:
    return tree.map(lambda t: t[rows])


def _join(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b])


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t
