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

from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.phase import Reply
from fedhead.core.batch import Batch
from fedhead.core.errors import BadInput
from fedhead.core.log import warn_once
from fedhead.core.tree import Weights, stack, unstack
from fedhead.data.pool import Pool
from fedhead.executors.graphs import first_line
from fedhead.executors.job import Executor, Job, Rows
from fedhead.executors.kernels.layers import stacked_layers
from fedhead.executors.loop import Loop
from fedhead.executors.stack import INPUT_DIMS, VmapVectorizer
from fedhead.models.split_model import SplitModel

T = TypeVar("T")
ALONE = 1024  # samples of one client at once
LEAST = 64  # samples at once under which a stack saves nothing


def together(device: torch.device, executor: Executor | None = None) -> bool:
    """Whether clients go through their models together: on a GPU, and where the run stacks them anyway."""
    return device.type == "cuda" or (executor is not None and executor.name == "stack")


@dataclass
class MemoryBudget:
    """How much goes through a model at once; it becomes less when memory runs out, and stays so."""

    clients: int = 64
    samples: int = 4096  # of all clients together
    apart: bool = False  # the model can't be stacked

    @classmethod
    def on(cls, device: torch.device) -> MemoryBudget:
        """Enough to fill a GPU; on a CPU no more than its caches hold."""
        return cls(samples=4096 if device.type == "cuda" else 256)

    def halve(self, clients: int, what: str) -> None:
        """Make do with half of what did not fit."""
        self.clients, self.samples = max(1, clients // 2), self.samples // 2
        if self.samples < LEAST:
            self.apart = True
            warn_once(f"{what}: out of memory with stacks of any size, going on client by client")
        else:
            warn_once(f"{what}: out of memory with {clients} clients at once, going on with {self.clients}")


def in_stacks(
    sizes: Sequence[int],
    stacked: Callable[[list[int]], Sequence[T]],
    alone: Callable[[int], T],
    budget: MemoryBudget,
    what: str,
    alike: float = 0.0,
) -> list[T]:
    """What `stacked` makes of some clients at a time, longest first, or `alone` of one after another, in their order.

    `sizes` are the clients' samples; the shortest of a stack has at least the share `alike` of the longest's. `what`
    names the work in notices.
    """
    order = sorted(range(len(sizes)), key=lambda k: (-sizes[k], k))
    found: dict[int, T] = {}
    while len(found) < len(order) and not budget.apart and len(order) > 1:
        first = len(found)
        places = [k for k in order[first : first + budget.clients] if sizes[k] >= alike * sizes[order[first]]]
        try:
            found.update(zip(places, stacked(places), strict=True))
        except torch.OutOfMemoryError:
            budget.halve(len(places), what)
        except BadInput:
            raise
        except Exception as error:  # whatever vmap can't take; a mistake of the model's own shows again below
            budget.apart = True
            warn_once(f"{what}: this model can't be stacked, going on client by client ({first_line(error)})")
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


def vectorized(function: Callable[..., Any], device: torch.device, in_dims: Any) -> Callable[..., Any]:
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
    budget: MemoryBudget | None,
    what: str,
) -> list[Tensor]:
    """What the clients' models say of the clients' own rows, a tensor a client; without a budget one after another."""

    def one(k: int) -> Tensor:
        return over_rows(alone(k), pool, [rows[k]], ALONE)[0]

    with torch.no_grad():
        if budget is None:
            return [one(k) for k in range(len(rows))]
        return in_stacks(
            [len(mine) for mine in rows],
            lambda places: over_rows(stacked(places), pool, [rows[k] for k in places], budget.samples),
            one,
            budget,
            what,
        )


# -- what it is used for ------------------------------------------------------------------------------
Read = Callable[[Tensor, Batch], Tensor]  # what is kept of the scores of a batch


def hits(scores: Tensor, batch: Batch) -> Tensor:
    """Whether each sample of a batch gets its own class as the best score."""
    right: Tensor = scores.argmax(-1) == batch.y
    return right.cpu()


def personal(
    job: Job, pool: Pool, rows: Sequence[Rows], budget: MemoryBudget | None = None, read: Read = hits
) -> list[Tensor]:
    """Each client's own model on the client's rows."""
    program, algorithm = job.program, job.program.algorithm

    def scores(inputs: ClientInputs, x: Tensor) -> Tensor:
        client = program.client(inputs)
        return algorithm.predict(algorithm.personal_model(client), x, client)

    def stacked(places: list[int]) -> Say:
        sights, predict = job.take(places).stacked_inputs(), vectorized(scores, pool.device, (INPUT_DIMS, 0))
        return lambda width, batch: read(predict(VmapVectorizer().narrow(sights, width), batch.x), batch)

    def alone(k: int) -> Say:
        inputs = job.inputs(k)
        return lambda _, batch: read(scores(inputs, batch.x[0])[None], batch)

    return each_on_its_own(pool, rows, stacked, alone, budget, "testing the clients")


def own_features(
    model: SplitModel, weights: Sequence[Weights], pool: Pool, rows: Sequence[Rows], budget: MemoryBudget | None = None
) -> list[Tensor]:
    """z of every client's rows, from weights of its own."""

    def z(w: Weights, x: Tensor) -> Tensor:
        return cast(Tensor, functional_call(model.eval(), dict(w), (x,)).z)

    def stacked(places: list[int]) -> Say:
        w, features = stack([weights[k] for k in places]), vectorized(z, pool.device, (0, 0))
        return lambda width, batch: features(w.map(lambda t: t[:width]), batch.x)

    def alone(k: int) -> Say:
        return lambda _, batch: z(weights[k], batch.x[0])[None]

    return each_on_its_own(pool, rows, stacked, alone, budget, "the clients' features")


def side_by_side(
    function: Callable[[Weights, Tensor], T], weights: Sequence[Weights], x: Tensor, budget: MemoryBudget | None = None
) -> list[T]:
    """`function(w, x)`, named tensors or a tuple of them, of several models on the same samples."""

    def stacked(places: list[int]) -> list[T]:
        out = vectorized(function, x.device, (0, None))(stack([weights[k] for k in places]), x)
        return [pytree.tree_map(lambda t, i=i: t[i], out) for i in range(len(places))]

    with torch.no_grad():
        if budget is None:
            return [function(w, x) for w in weights]
        budget.clients = max(1, min(budget.clients, budget.samples // len(x)))
        return in_stacks(
            [len(x)] * len(weights), stacked, lambda k: function(weights[k], x), budget, "comparing models"
        )


@dataclass
class ForwardExecutor(Executor):
    """Runs jobs without local training, such as CCVR's statistics: one pass over the clients' data, in stacks.

    A stack goes on as long as its longest client, so the clients of one are of similar sizes.
    """

    name = "stack"
    budget: MemoryBudget = field(default_factory=MemoryBudget)

    def run(self, job: Job) -> list[Reply]:
        """The replies, in the order of the job's clients."""
        assert not any(job.schedules), "there is nothing to train"
        sizes = [len(rows) for rows in job.rows]
        return in_stacks(
            sizes,
            lambda places: self._stacked(job.take(places)),
            lambda k: _alone(job, k),
            self.budget,
            f"stage {job.program.algorithm.name}",
            alike=0.5,
        )

    def _stacked(self, job: Job) -> list[Reply]:
        count = len(job.clients)
        program = replace(job.program, chunk=max(1, self.budget.samples // count))

        def go(inputs: ClientInputs) -> Reply:  # in one piece, so that a model which all clients share is not stacked
            return program.finish(program.start(inputs), inputs)

        reply = vectorized(go, program.pool.device, (INPUT_DIMS,))(job.stacked_inputs())
        return [Reply(s, k) for s, k in zip(unstack(reply.send, count), unstack(reply.keep, count), strict=True)]


def _alone(job: Job, place: int) -> Reply:
    return Loop().run(job.take([place]))[0]
