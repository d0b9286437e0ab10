"""Forward passes of many clients at once: their models stacked along a leading axis, each on its own samples.

Clients stand longest first, so that those who still have samples are always a prefix of the stack. Where memory runs
out the stacks are halved; where a model can't be stacked, its clients go one after another. Both are said, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from fedhead.client import Sight
from fedhead.data.pool import Pool
from fedhead.engine.graphs import first_line
from fedhead.engine.job import Executor, Job, Rows
from fedhead.engine.loop import Loop
from fedhead.engine.stack import SIGHT, VmapLift
from fedhead.errors import BadInput
from fedhead.models.split import Split
from fedhead.notice import notice
from fedhead.stacked.layers import stacked_layers
from fedhead.tree import Weights, stack, unstack
from fedhead.types import Batch, Reply

T = TypeVar("T")
ALONE = 1024  # samples of one client at once
LEAST = 64  # samples at once under which a stack saves nothing


def together(device: torch.device, executor: Executor | None = None) -> bool:
    """Whether clients go through their models together: on a GPU, and where the run stacks them anyway."""
    return device.type == "cuda" or (executor is not None and executor.name == "stack")


@dataclass
class Room:
    """How much goes through a model at once; it becomes less when memory runs out, and stays so."""

    clients: int = 64
    samples: int = 4096  # of all clients together
    apart: bool = False  # the model can't be stacked

    @classmethod
    def on(cls, device: torch.device) -> Room:
        """Enough to fill a GPU; on a CPU no more than its caches hold."""
        return cls(samples=4096 if device.type == "cuda" else 256)

    def halve(self, clients: int, what: str) -> None:
        """Make do with half of what did not fit."""
        self.clients, self.samples = max(1, clients // 2), self.samples // 2
        if self.samples < LEAST:
            self.apart = True
            notice(f"{what}: out of memory with stacks of any size, going on client by client")
        else:
            notice(f"{what}: out of memory with {clients} clients at once, going on with {self.clients}")


def in_stacks(
    sizes: Sequence[int],
    stacked: Callable[[list[int]], Sequence[T]],
    alone: Callable[[int], T],
    room: Room,
    what: str,
    alike: float = 0.0,
) -> list[T]:
    """What `stacked` makes of some clients at a time, longest first, or `alone` of one after another, in their order.

    `sizes` are the clients' samples; the shortest of a stack has at least the share `alike` of the longest's. `what`
    names the work in notices.
    """
    order = sorted(range(len(sizes)), key=lambda k: (-sizes[k], k))
    found: dict[int, T] = {}
    while len(found) < len(order) and not room.apart and len(order) > 1:
        first = len(found)
        places = [k for k in order[first : first + room.clients] if sizes[k] >= alike * sizes[order[first]]]
        try:
            found.update(zip(places, stacked(places), strict=True))
        except torch.OutOfMemoryError:
            room.halve(len(places), what)
        except BadInput:
            raise
        except Exception as error:  # whatever vmap can't take; a mistake of the model's own shows again below
            room.apart = True
            notice(f"{what}: this model can't be stacked, going on client by client ({first_line(error)})")
    return [found[k] if k in found else alone(k) for k in range(len(order))]


Say = Callable[[int, Batch], Tensor]  # of a batch of the first so many clients; both have a client axis in front


def over_rows(say: Say, pool: Pool, rows: Sequence[Rows], samples: int) -> list[Tensor]:
    """What `say` makes of all rows of all clients, longest first; every client gets its own rows' part."""
    lengths = [len(mine) for mine in rows]
    parts: list[list[Tensor]] = [[] for _ in rows]
    for begin, end, width in _steps(lengths, samples):
        index = np.stack([np.resize(mine[begin:end], end - begin) for mine in rows[:width]])
        weight = np.stack([np.arange(begin, end) < n for n in lengths[:width]])
        batch = pool.batch(torch.from_numpy(index).to(pool.device), torch.from_numpy(weight).to(pool.device))
        for part, n, out in zip(parts, lengths, say(width, batch), strict=False):
            part.append(out[: n - begin])
    return [torch.cat(part) if part else torch.zeros(0) for part in parts]


def _steps(lengths: Sequence[int], samples: int) -> Iterator[tuple[int, int, int]]:
    """Spans of samples and how many clients have any in them, so that no step holds many more than `samples`.

    >>> list(_steps([5, 2, 2], samples=6))
    [(0, 2, 3), (2, 5, 1)]
    """
    begin = 0
    while begin < max(lengths, default=0):
        width = sum(n > begin for n in lengths)
        end = min(begin + max(1, samples // width), lengths[0])
        yield begin, end, width
        begin = end


def lifted(function: Callable[..., Any], device: torch.device, in_dims: Any) -> Callable[..., Any]:
    """A function of one client over the client axis; with layers made for stacks."""
    many = vmap(function, in_dims=in_dims)

    def call(*args: Any) -> Any:
        with torch.no_grad(), stacked_layers(device):
            return many(*args)

    return call


def each_on_its_own(
    pool: Pool,
    rows: Sequence[Rows],
    stacked: Callable[[list[int]], Say],
    alone: Callable[[int], Say],
    room: Room | None,
    what: str,
) -> list[Tensor]:
    """What the clients' models say of the clients' own rows, a tensor a client; without room one after another."""

    def one(k: int) -> Tensor:
        return over_rows(alone(k), pool, [rows[k]], ALONE)[0]

    with torch.no_grad():
        if room is None:
            return [one(k) for k in range(len(rows))]
        return in_stacks(
            [len(mine) for mine in rows],
            lambda places: over_rows(stacked(places), pool, [rows[k] for k in places], room.samples),
            one,
            room,
            what,
        )


# -- what it is used for ------------------------------------------------------------------------------
Read = Callable[[Tensor, Batch], Tensor]  # what is kept of the scores of a batch


def hits(scores: Tensor, batch: Batch) -> Tensor:
    """Whether each sample of a batch gets its own class as the best score."""
    right: Tensor = scores.argmax(-1) == batch.y
    return right.cpu()


def personal(job: Job, pool: Pool, rows: Sequence[Rows], room: Room | None = None, read: Read = hits) -> list[Tensor]:
    """Each client's own model on the client's rows."""
    program, exchange = job.program, job.program.exchange

    def scores(sight: Sight, x: Tensor) -> Tensor:
        me = program.me(sight)
        return exchange.predict(exchange.personal_model(me), x, me)

    def stacked(places: list[int]) -> Say:
        sights, predict = job.take(places).sights(), lifted(scores, pool.device, (SIGHT, 0))
        return lambda width, batch: read(predict(VmapLift().narrow(sights, width), batch.x), batch)

    def alone(k: int) -> Say:
        sight = job.sight(k)
        return lambda _, batch: read(scores(sight, batch.x[0])[None], batch)

    return each_on_its_own(pool, rows, stacked, alone, room, "testing the clients")


def own_features(
    model: Split, weights: Sequence[Weights], pool: Pool, rows: Sequence[Rows], room: Room | None = None
) -> list[Tensor]:
    """z of every client's rows, from weights of its own."""

    def z(w: Weights, x: Tensor) -> Tensor:
        return cast(Tensor, functional_call(model.eval(), dict(w), (x,)).z)

    def stacked(places: list[int]) -> Say:
        w, features = stack([weights[k] for k in places]), lifted(z, pool.device, (0, 0))
        return lambda width, batch: features(w.map(lambda t: t[:width]), batch.x)

    def alone(k: int) -> Say:
        return lambda _, batch: z(weights[k], batch.x[0])[None]

    return each_on_its_own(pool, rows, stacked, alone, room, "the clients' features")


def side_by_side(
    function: Callable[[Weights, Tensor], T], weights: Sequence[Weights], x: Tensor, room: Room | None = None
) -> list[T]:
    """`function(w, x)`, named tensors or a tuple of them, of several models on the same samples; without room apart."""

    def stacked(places: list[int]) -> list[T]:
        out = lifted(function, x.device, (0, None))(stack([weights[k] for k in places]), x)
        return [pytree.tree_map(lambda t, i=i: t[i], out) for i in range(len(places))]

    with torch.no_grad():
        if room is None:
            return [function(w, x) for w in weights]
        room.clients = max(1, min(room.clients, room.samples // len(x)))
        return in_stacks([len(x)] * len(weights), stacked, lambda k: function(weights[k], x), room, "comparing models")


@dataclass
class Passes(Executor):
    """Runs jobs without local training, such as CCVR's statistics: one pass over the clients' data, in stacks.

    A stack goes on as long as its longest client, so the clients of one are of similar sizes.
    """

    name = "stack"
    room: Room = field(default_factory=Room)

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        assert not any(job.schedules), "there is nothing to train"
        sizes = [len(rows) for rows in job.rows]
        return in_stacks(
            sizes,
            lambda places: self._stacked(job.take(places)),
            lambda k: _alone(job, k),
            self.room,
            f"stage {job.program.exchange.name}",
            alike=0.5,
        )

    def _stacked(self, job: Job) -> list[Reply]:
        count = len(job.clients)
        program = replace(job.program, chunk=max(1, self.room.samples // count))

        def go(sight: Sight) -> Reply:  # in one piece, so that a model which all clients share is not stacked
            return program.finish(program.start(sight), sight)

        reply = lifted(go, program.pool.device, (SIGHT,))(job.sights())
        return [Reply(s, k) for s, k in zip(unstack(reply.send, count), unstack(reply.keep, count), strict=True)]


def _alone(job: Job, place: int) -> Reply:
    return Loop().run(job.take([place]))[0]
