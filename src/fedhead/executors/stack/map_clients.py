"""Functions mapped over many clients: models are stacked along a leading axis, each with its own samples.

Clients are sorted by their number of samples, most first, so that clients with samples left are always a prefix of the
stack. If memory runs out, the stacks are halved. If a model can't be stacked, clients are processed one by one. Both
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
from fedhead.data.partitions.allocation import Indices
from fedhead.data.pool import Pool
from fedhead.executors.client.base import Executor
from fedhead.executors.kernels.layers import with_stacked_layers

T = TypeVar("T")
SINGLE_SAMPLES = 1024  # batch size of a single client
MAX_SAMPLES = 16384  # maximum batch size of tests on a GPU
MEMORY_SHARE = 1 / 1024  # share of GPU memory for a batch's inputs; activations take 100 times as much or more
MIN_SAMPLES = 64  # batch size below which stacking does not pay off
_fitting: WeakKeyDictionary[Pool, int] = WeakKeyDictionary()  # see remember_fitting
SIMILAR = 0.5  # minimum size of a client relative to the largest of its stack, if all samples are read


def use_stacks(device: torch.device, executor: Executor | None = None) -> bool:
    """Return whether to stack the clients' models: on a GPU, or if the run's executor is the stack.

    Models that train in lanes are not stacked, since preparing their stacks takes long: for four architectures with 65
    distinct convolutions the kernels of the first test took 37 s.
    """
    name = "" if executor is None else executor.name
    return name == "stack" or (device.type == "cuda" and name != "lanes")


def samples_at_once(pool: Pool) -> int:
    """Return the batch size for tests on a pool.

    With small samples a GPU is limited by kernel launches, so large batches cost little more than small ones.

    Args:
        pool: Test samples.
    """
    if pool in _fitting:
        return _fitting[pool]
    if pool.device.type != "cuda" or not len(pool):
        return SINGLE_SAMPLES
    memory = torch.cuda.get_device_properties(pool.device).total_memory
    return max(SINGLE_SAMPLES, min(MAX_SAMPLES, int(memory * MEMORY_SHARE) // pool.sample_nbytes))


def remember_fitting(pool: Pool, samples: int) -> None:
    """Set the batch size of a pool whose larger batches did not fit into memory.

    For example, token ids are small, but their activations are not.
    """
    _fitting[pool] = samples


@dataclass
class MemoryBudget:
    """Sizes of stacks and batches; halved when memory runs out.

    Args:
        clients: Clients per stack.
        samples: Samples per batch, of all clients of a stack.
        one_by_one: Whether to process clients one by one.
    """

    clients: int = 64
    samples: int = 4096
    one_by_one: bool = False

    @classmethod
    def on(cls, device: torch.device) -> MemoryBudget:
        """Return a budget that fills a GPU, or fits into the caches of a CPU."""
        return cls(samples=4096 if device.type == "cuda" else 256)

    @classmethod
    def for_testing(cls, pool: Pool) -> MemoryBudget:
        """Return a budget for forward passes over a pool."""
        budget = cls.on(pool.device)
        if pool.device.type == "cuda":
            budget.samples = max(budget.samples, samples_at_once(pool))
        return budget

    def halve(self, clients: int, activity: str) -> None:
        """Halve the budget after `clients` clients did not fit into memory."""
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
    """Call a function, and retry with half the batch size while memory runs out.

    Args:
        work: Function of the batch size.
        samples: First batch size to try.
        count: Number of samples.
        activity: Name of the work in log messages.

    Returns:
        Result of the function, and the batch size that fit.

    Raises:
        torch.OutOfMemoryError: If not even a single sample fits.
    """
    while True:
        try:
            return work(samples), samples
        except torch.OutOfMemoryError:
            if min(samples, count) <= 1:
                raise
        tried = min(samples, count)  # outside `except`, which would keep the error's tensors in memory
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
    """Process clients in stacks, most samples first, or one by one if they can't be stacked.

    Args:
        sizes: Number of samples per client.
        stacked: Processes a stack, given the clients' indices.
        single: Processes one client, given its index.
        budget: Sizes of stacks and batches.
        activity: Name of the work in log messages.
        min_ratio: Minimum size of a client relative to the largest of its stack.

    Returns:
        One result per client, in the order of `sizes`.
    """
    order = sorted(range(len(sizes)), key=lambda k: (-sizes[k], k))
    results: dict[int, T] = {}
    while len(results) < len(order) and not budget.one_by_one and len(order) > 1:
        first = len(results)
        places = [k for k in order[first : first + budget.clients] if sizes[k] >= min_ratio * sizes[order[first]]]
        try:
            results.update(zip(places, stacked(places), strict=True))
        except torch.OutOfMemoryError:
            budget.halve(len(places), activity)
        except BadInput:
            raise
        except Exception as error:  # unsupported by vmap, or an error of the model, which `single` raises again
            budget.one_by_one = True
            warn_once(f"{activity}: this model can't be stacked, continuing client by client ({first_line(error)})")
    return [results[k] if k in results else single(k) for k in range(len(order))]


BatchFunction = Callable[[int, Batch], Tensor]  # (clients, their batch) -> outputs with a client axis


def map_samples(function: BatchFunction, pool: Pool, indices: Sequence[Indices], samples: int) -> list[Tensor]:
    """Apply a function to all samples of all clients, in batches.

    Args:
        function: Function of the number of active clients and their batch.
        pool: Samples.
        indices: Sample indices of each client, most samples first.
        samples: Samples per batch, of all clients.

    Returns:
        Outputs of each client's samples.
    """
    lengths = [len(each) for each in indices]
    parts: list[list[Tensor]] = [[] for _ in indices]
    for begin, end, width in _steps(lengths, samples):
        index = np.stack([np.resize(each[begin:end], end - begin) for each in indices[:width]])
        weight = np.stack([np.arange(begin, end) < n for n in lengths[:width]])
        batch = pool.batch(to_device(index, pool.device), to_device(weight, pool.device))
        for part, n, out in zip(parts, lengths, function(width, batch), strict=False):
            part.append(out[: n - begin])
    return [torch.cat(part) if part else torch.zeros(0) for part in parts]


def _steps(lengths: Sequence[int], samples: int) -> Iterator[tuple[int, int, int]]:
    """Yield (begin, end, clients): ranges of samples with the number of clients that have them.

    Each range holds about `samples` samples of all clients.

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
    """Vectorize a function of one client over the client axis, with stacked layers."""
    return torch.no_grad()(with_stacked_layers(vmap(function, in_dims=in_dims), device))


def map_clients(
    pool: Pool,
    indices: Sequence[Indices],
    stacked: Callable[[list[int]], BatchFunction],
    single: Callable[[int], BatchFunction],
    budget: MemoryBudget | None,
    activity: str,
) -> list[Tensor]:
    """Apply each client's model to its samples; one by one without a budget.

    Returns:
        One tensor per client.
    """
    samples = SINGLE_SAMPLES

    def map_single(k: int) -> Tensor:
        nonlocal samples  # stays smaller once memory has run out
        outputs, samples = retry_with_smaller_batches(
            partial(map_samples, single(k), pool, [indices[k]]), samples, len(indices[k]), activity
        )
        return outputs[0]

    with torch.no_grad():
        if budget is None:
            return [map_single(k) for k in range(len(indices))]
        return map_in_stacks(
            [len(each) for each in indices],
            lambda places: map_samples(stacked(places), pool, [indices[k] for k in places], budget.samples),
            map_single,
            budget,
            activity,
        )
