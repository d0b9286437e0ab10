"""The stack: many clients at once, their tensors stacked along a leading axis (`torch.func.vmap`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import vmap

from fedhead.client import Sight
from fedhead.engine.job import Job
from fedhead.engine.local import Lift, Program, local_round
from fedhead.optim import Optimizer
from fedhead.tree import Tree, Weights, unstack
from fedhead.types import Phase, Reply

# Which tensors of a client's view have a client axis.
SIGHT = Sight(down=None, own=0, state=0, counts=0, rows=0, mask=0, steps=0, lr=None, round=None)  # type: ignore[arg-type]  # dims stand in for tensors


class VmapLift(Lift):
    """Carries functions of one client over to a stack of clients."""

    def start(self, program: Program) -> Callable[[Sight], Weights]:
        """`Program.start` over the client axis."""
        return vmap(program.start, in_dims=(SIGHT,))

    def finish(self, program: Program) -> Callable[[Weights, Sight], Reply]:
        """`Program.finish` over the client axis."""
        return vmap(program.finish, in_dims=(0, SIGHT))

    def correct(self, program: Program) -> Callable[[Tree, Sight], Tree]:
        """`Program.correct` over the client axis."""
        return vmap(program.correct, in_dims=(0, SIGHT))

    def loss(self, program: Program, phase: Phase) -> Callable[..., tuple[Tensor, Tree]]:
        """`Program.loss` over the client axis."""
        return vmap(program.loss(phase), in_dims=(0, 0, 0, 0, SIGHT))

    def init(self, optimizer: Optimizer) -> Callable[[Tree], Tree]:
        """`Optimizer.init` over the client axis."""
        return vmap(optimizer.init)

    def narrow(self, sight: Sight, width: int) -> Sight:
        """The first clients of the stack."""

        def cut(value: Any, dim: int | None) -> Any:
            if dim is None:
                return value
            return value.map(lambda t: t[:width]) if isinstance(value, Tree) else value[:width]

        return Sight(*(cut(v, d) for v, d in zip(sight, SIGHT, strict=True)))


class Stack:
    """Runs clients in stacks of at most `size`, longest first, so that the active ones are always a prefix."""

    name = "stack"

    def __init__(self, size: int = 64):
        self.size = size

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        order = sorted(range(len(job.clients)), key=lambda k: (-len(job.rows[k]), k))
        replies: dict[int, Reply] = {}
        for begin in range(0, len(order), self.size):
            places = order[begin : begin + self.size]
            part = job.take(places)
            reply = local_round(part.program, part.sights(), part.stacked_tables(), VmapLift())
            sent, kept = unstack(reply.send, len(places)), unstack(reply.keep, len(places))
            replies.update({k: Reply(s, t) for k, s, t in zip(places, sent, kept, strict=True)})
        return [replies[k] for k in range(len(order))]
