"""Forward passes of many clients at once: their models stacked along a leading axis, each on its own samples.

Clients are sorted by their number of samples, longest first, so that those with samples left are always a prefix of the
stack. If memory runs out the stacks are halved; if a model can't be stacked, its clients are processed one by one. Both
are logged once.
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
from fedhead.core.errors import BadInput, first_line
from fedhead.core.log import warn_once
from fedhead.core.tree import Weights, stack, unstack
from fedhead.data.pool import Pool
from fedhead.executors.job import Executor, Job, Rows
from fedhead.executors.kernels.layers import stacked_layers
from fedhead.executors.loop import Loop
from fedhead.executors.stack import INPUT_DIMS, VmapVectorizer
from fedhead.models.split_model import SplitModel

T = TypeVar("T")
SINGLE_SAMPLES = 1024  # samples at once of a single client
MIN_SAMPLES = 64  # samples at once below which stacking does not pay off


def use_stacks(device: torch.device, executor: Executor | None = None) -> bool:
    """Return whether to stack the clients' models: on a GPU, or if the run's executor stacks clients anyway."""
    return device.type == "cuda" or (executor is not None and executor.name == "stack")


@dataclass
class MemoryBudget:
    """How much is processed at once; it shrinks when memory runs out.

    Args:
        clients: Clients per stack.
        samples: Samples at once, of all clients of a stack.
        one_by_one: Whether to process clients one by one, since the model can't be stacked.
    """

    clients: int = 64
    samples: int = 4096
    one_by_one: bool = False

    @classmethod
    def on(cls, device: torch.device) -> MemoryBudget:
        """Return a budget that fills a GPU, or that stays within the caches of a CPU."""
        return cls(samples=4096 if device.type == "cuda" else 256)

    def halve(self, clients: int, activity: str) -> None:
        """Halve the budget after `clients` clients did not fit in memory."""
        self.clients, self.samples = max(1, clients // 2), self.samples // 2
        if self.samples < MIN_SAMPLES:
            self.one_by_one = True
            warn_once(f"{activity}: out of memory with stacks of any size, continuing client by client")
        else:
            warn_once(f"{activity}: out of memory with {clients} clients at once, continuing with {self.clients}")


def map_in_stacks(
    sizes: Sequence[int],
    stacked: Callable[[list[int]], Sequence[T]],
    single: Callable[[int], T],
    budget: MemoryBudget,
    activity: str,
    min_ratio: float = 0.0,
) -> list[T]:
    """Process clients in stacks, longest first, or one by one if they can't be stacked.

    Args:
        sizes: Number of samples per client.
        stacked: Processes a stack, given the clients' indices.
        single: Processes one client, given its index.
        budget: How much to process at once.
        activity: Name of the work in log messages.
        min_ratio: Size of the smallest client of a stack relative to the largest.

    Returns:
        One result per client, in the order of `sizes`.
    """
    order = sorted(range(len(sizes)), key=lambda k: (-sizes[k], k))
    found: dict[int, T] = {}
    while len(found) < len(order) and not budget.one_by_one and len(order) > 1:
        first = len(found)
        places = [k for k in order[first : first + budget.clients] if sizes[k] >= min_ratio * sizes[order[first]]]
        try:
            found.update(zip(places, stacked(places), strict=True))
        except torch.OutOfMemoryError:
            budget.halve(len(places), activity)
        except BadInput:
            raise
        except Exception as error:  # anything that vmap does not support; errors of the model itself show again below
            budget.one_by_one = True
            warn_once(f"{activity}: this model can't be stacked, continuing client by client ({first_line(error)})")
    return [found[k] if k in found else single(k) for k in range(len(order))]


BatchFunction = Callable[[int, Batch], Tensor]  # (clients, their batch) -> outputs with a client axis


def map_rows(function: BatchFunction, pool: Pool, rows: Sequence[Rows], samples: int) -> list[Tensor]:
    """Apply a function to all rows of all clients, in batches.

    Args:
        function: Applied to the first `width` clients and a batch of theirs.
        pool: Samples.
        rows: Rows of each client, longest first.
        samples: Samples per batch, of all clients.

    Returns:
        The outputs for each client's own rows.
    """
    lengths = [len(mine) for mine in rows]
    parts: list[list[Tensor]] = [[] for _ in rows]
    for begin, end, width in _steps(lengths, samples):
        index = np.stack([np.resize(mine[begin:end], end - begin) for mine in rows[:width]])
        weight = np.stack([np.arange(begin, end) < n for n in lengths[:width]])
        batch = pool.batch(torch.from_numpy(index).to(pool.device), torch.from_numpy(weight).to(pool.device))
        for part, n, out in zip(parts, lengths, function(width, batch), strict=False):
            part.append(out[: n - begin])
    return [torch.cat(part) if part else torch.zeros(0) for part in parts]


def _steps(lengths: Sequence[int], samples: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of samples with the number of clients that reach them, so that no step exceeds `samples` by much.

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
    """Vectorize a function of one client over the client axis, with layers made for stacks."""
    stacked = vmap(function, in_dims=in_dims)

    def call(*args: Any) -> Any:
        with torch.no_grad(), stacked_layers(device):
            return stacked(*args)

    return call


def map_clients(
    pool: Pool,
    rows: Sequence[Rows],
    stacked: Callable[[list[int]], BatchFunction],
    single: Callable[[int], BatchFunction],
    budget: MemoryBudget | None,
    activity: str,
) -> list[Tensor]:
    """Apply the clients' own models to their own rows; one by one without a budget.

    Returns:
        One tensor per client.
    """

    def one(k: int) -> Tensor:
        return map_rows(single(k), pool, [rows[k]], SINGLE_SAMPLES)[0]

    with torch.no_grad():
        if budget is None:
            return [one(k) for k in range(len(rows))]
        return map_in_stacks(
            [len(mine) for mine in rows],
            lambda places: map_rows(stacked(places), pool, [rows[k] for k in places], budget.samples),
            one,
            budget,
            activity,
        )


# -- applications -----------------------------------------------------------------------------------------
Reduce = Callable[[Tensor, Batch], Tensor]  # what to keep of the scores of a batch


def correct(scores: Tensor, batch: Batch) -> Tensor:
    """Return whether the highest score of each sample is that of its label."""
    right: Tensor = scores.argmax(-1) == batch.y
    return right.cpu()


def personal(
    job: Job, pool: Pool, rows: Sequence[Rows], budget: MemoryBudget | None = None, reduce: Reduce = correct
) -> list[Tensor]:
    """Evaluate the personal model of each client on the client's rows.

    Args:
        job: The clients.
        pool: Test samples.
        rows: Rows of each client in the pool.
        budget: Stacks the models if given.
        reduce: Applied to the scores of each batch.

    Returns:
        One tensor per client.
    """
    program, algorithm = job.program, job.program.algorithm

    def scores(inputs: ClientInputs, x: Tensor) -> Tensor:
        client = program.client(inputs)
        return algorithm.predict(algorithm.personal_model(client), x, client)

    def stacked(places: list[int]) -> BatchFunction:
        inputs, predict = job.take(places).stacked_inputs(), vectorized(scores, pool.device, (INPUT_DIMS, 0))
        return lambda width, batch: reduce(predict(VmapVectorizer().narrow(inputs, width), batch.x), batch)

    def single(k: int) -> BatchFunction:
        inputs = job.inputs(k)
        return lambda _, batch: reduce(scores(inputs, batch.x[0])[None], batch)

    return map_clients(pool, rows, stacked, single, budget, "testing the clients")


def client_features(
    model: SplitModel, weights: Sequence[Weights], pool: Pool, rows: Sequence[Rows], budget: MemoryBudget | None = None
) -> list[Tensor]:
    """Compute the features z of each client's rows with the client's own weights.

    Args:
        model: Architecture of the clients.
        weights: Weights of each client.
        pool: Samples.
        rows: Rows of each client in the pool.
        budget: Stacks the models if given.

    Returns:
        Features [n, d] per client.
    """

    def z(w: Weights, x: Tensor) -> Tensor:
        return cast(Tensor, functional_call(model.eval(), dict(w), (x,)).z)

    def stacked(places: list[int]) -> BatchFunction:
        w, features = stack([weights[k] for k in places]), vectorized(z, pool.device, (0, 0))
        return lambda width, batch: features(w.map(lambda t: t[:width]), batch.x)

    def single(k: int) -> BatchFunction:
        return lambda _, batch: z(weights[k], batch.x[0])[None]

    return map_clients(pool, rows, stacked, single, budget, "the clients' features")


def map_models(
    function: Callable[[Weights, Tensor], T], weights: Sequence[Weights], x: Tensor, budget: MemoryBudget | None = None
) -> list[T]:
    """Apply `function(w, x)` with each of several weights to the same samples.

    Args:
        function: Returns named tensors or a tuple of tensors.
        weights: Weights of each model.
        x: Samples, [B, ...].
        budget: Stacks the models if given.

    Returns:
        One result per model.
    """

    def stacked(places: list[int]) -> list[T]:
        out = vectorized(function, x.device, (0, None))(stack([weights[k] for k in places]), x)
        return [pytree.tree_map(lambda t, i=i: t[i], out) for i in range(len(places))]

    with torch.no_grad():
        if budget is None:
            return [function(w, x) for w in weights]
        budget.clients = max(1, min(budget.clients, budget.samples // len(x)))
        return map_in_stacks(
            [len(x)] * len(weights), stacked, lambda k: function(weights[k], x), budget, "comparing models"
        )


@dataclass
class ForwardExecutor(Executor):
    """Runs jobs without local training, such as CCVR's statistics: one pass over the clients' data, in stacks.

    A stack takes as long as its largest client, so it contains clients of similar sizes.
    """

    name = "stack"
    budget: MemoryBudget = field(default_factory=MemoryBudget)

    def run(self, job: Job) -> list[Reply]:
        """Return the replies in the order of the job's clients."""
        assert not any(job.schedules), "there is nothing to train"
        sizes = [len(rows) for rows in job.rows]
        return map_in_stacks(
            sizes,
            lambda places: self._stacked(job.take(places)),
            lambda k: _single(job, k),
            self.budget,
            f"stage {job.program.algorithm.name}",
            min_ratio=0.5,
        )

    def _stacked(self, job: Job) -> list[Reply]:
        count = len(job.clients)
        program = replace(job.program, chunk=max(1, self.budget.samples // count))

        def run(inputs: ClientInputs) -> Reply:  # in one function, so that a model shared by all clients is not stacked
            return program.finish(program.start(inputs), inputs)

        reply = vectorized(run, program.pool.device, (INPUT_DIMS,))(job.stacked_inputs())
        return [Reply(s, k) for s, k in zip(unstack(reply.send, count), unstack(reply.keep, count), strict=True)]


def _single(job: Job, place: int) -> Reply:
    return Loop().run(job.take([place]))[0]
