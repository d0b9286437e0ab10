"""Apply functions to many clients at once: their models stacked along a leading axis, each on its own samples.

Clients are sorted by their number of samples, longest first, so that those with samples left are always a prefix of the
stack. If memory runs out the stacks are halved; if a model can't be stacked, its clients are processed one by one. Both
are logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fedhead.core.system.errors import BadInput, first_line
from fedhead.core.system.log import warn_once
from fedhead.core.training.batch import Batch
from fedhead.core.tree.transfer import to_device
from fedhead.data.partitions.allocation import Rows
from fedhead.data.pool import Pool
from fedhead.executors.client.base import Executor
from fedhead.executors.kernels.layers import stacked_layers

T = TypeVar("T")
SINGLE_SAMPLES = 1024  # samples at once of a single client
MAX_SAMPLES = 16384  # samples at once that are tested on a GPU
MEMORY_SHARE = 1 / 1024  # of a GPU's memory for their inputs; activations take a hundred times as much, or more
MIN_SAMPLES = 64  # samples at once below which stacking does not pay off
_fitting: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()  # see remember_fitting
SIMILAR = 0.5  # size of the smallest client of a stack relative to its first, where all samples of each are read


def use_stacks(device: torch.device, executor: Executor | None = None) -> bool:
    """Return whether to stack the clients' models: on a GPU, or if the run's executor stacks clients anyway.

    Lanes train architectures whose stacks take long to prepare: the kernels for the first test of four of them, with 65
    different convolutions, took 37 s.
    """
    name = "" if executor is None else executor.name
    return name == "stack" or (device.type == "cuda" and name != "lanes")


def samples_at_once(pool: Pool) -> int:
    """Return how many samples of a pool are tested at a time.

    A GPU tests small samples sooner than its host can launch the kernels of their layers, so that many at a time cost
    little more than few.

    Args:
        pool: The samples.
    """
    if pool in _fitting:
        return _fitting[pool]
    if pool.device.type != "cuda" or not len(pool):
        return SINGLE_SAMPLES
    memory = torch.cuda.get_device_properties(pool.device).total_memory
    return max(SINGLE_SAMPLES, min(MAX_SAMPLES, int(memory * MEMORY_SHARE) // pool.sample_nbytes))


def remember_fitting(pool: Pool, samples: int) -> None:
    """Let `samples_at_once` return so many for a pool of which more did not fit into memory.

    Token ids are small, for example, and their activations are not.
    """
    _fitting[pool] = samples


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

    @classmethod
    def for_testing(cls, pool: Pool) -> MemoryBudget:
        """Return a budget for forward passes over samples like those of a pool."""
        made = cls.on(pool.device)
        if pool.device.type == "cuda":
            made.samples = max(made.samples, samples_at_once(pool))
        return made

    def halve(self, clients: int, activity: str) -> None:
        """Halve the budget after `clients` clients did not fit in memory."""
        samples = self.samples
        self.clients, self.samples = max(1, clients // 2), samples // 2
        if self.samples < MIN_SAMPLES:
            self.one_by_one = True
            warn_once(f"{activity}: out of memory with stacks of any size, continuing client by client")
        elif clients == 1:
            warn_once(f"{activity}: out of memory with {samples} samples at once, continuing with {self.samples}")
        else:
            warn_once(f"{activity}: out of memory with {clients} clients at once, continuing with {self.clients}")


def retry_with_smaller_batches(work: Callable[[int], T], samples: int, count: int, activity: str) -> tuple[T, int]:
    """Do some work with so many samples at a time, or with half as many while memory runs out.

    Args:
        work: Does all of it, given how many samples to take at a time.
        samples: How many to try first.
        count: How many there are.
        activity: Name of the work in log messages.

    Returns:
        What the work returned, and how many samples at a time fit.

    Raises:
        torch.OutOfMemoryError: If not even a single sample fits.
    """
    while True:
        try:
            return work(samples), samples
        except torch.OutOfMemoryError:
            if min(samples, count) <= 1:
                raise
        tried = min(samples, count)  # the error, and what it keeps in memory, is gone here
        samples = tried // 2
        warn_once(f"{activity}: out of memory with {tried} samples at once, continuing with {samples}")


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
        batch = pool.batch(to_device(index, pool.device), to_device(weight, pool.device))
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

    samples = SINGLE_SAMPLES

    def one(k: int) -> Tensor:
        nonlocal samples  # fewer, once memory has run out
        found, samples = retry_with_smaller_batches(
            partial(map_rows, single(k), pool, [rows[k]]), samples, len(rows[k]), activity
        )
        return found[0]

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
