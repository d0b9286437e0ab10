"""Index tables of a job: the samples and batches of its clients, on the device.

They depend only on the clients' samples and batch schedules, so they can be precomputed while a GPU trains the previous
round. A background thread builds them on the host with numpy; they are then copied to the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhead.core.training.batching import BatchSchedule, Noise, batch_tables
from fedhead.core.tree.transfer import to_device
from fedhead.data.partitions.allocation import Indices
from fedhead.data.pool import Pool
from fedhead.executors.client.client_round import PhaseBatches
from fedhead.executors.client.program import ClientProgram


class IndexTable(NamedTuple):
    """Sample indices of the clients; shorter lists are padded with repeated samples, whose mask is 0."""

    indices: Tensor  # [K, longest]
    mask: Tensor  # [K, longest]
    steps: Tensor  # [K], sum over phases


class HostBatches(NamedTuple):
    """Batches of a phase on the host."""

    data: str  # private or public
    indices: NDArray[np.int32]  # [steps, clients, batch]
    weight: NDArray[np.float32]  # [steps, clients, batch]
    keys: list[int]  # one per client
    widths: list[int]  # see PhaseBatches
    padded: list[bool]
    noise: list[Noise]  # of DP-SGD, one per client


@dataclass(frozen=True)
class JobTables:
    """Precomputed tables of a stack of clients.

    Args:
        places: Positions of the clients in the job's lists, in stack order.
        indices: Sample indices of the clients; None: not yet copied to the device.
        batches: Batches of each phase on the device, or a future that computes them on the host.
    """

    places: list[int]
    indices: IndexTable | None
    batches: list[PhaseBatches] | Future[list[HostBatches]]

    def batches_on_device(self, program: ClientProgram) -> list[PhaseBatches]:
        """Return the batches of each phase; waits for the background thread."""
        return to_phases(program, self.batches.result()) if isinstance(self.batches, Future) else self.batches


def phase_data(program: ClientProgram) -> list[str]:
    """Return the data of each phase: private or public."""
    return [phase.data for phase in program.algorithm.phases(program.task)]


def host_batches(
    data: Sequence[str],
    indices: Sequence[Indices],
    schedules: Sequence[Sequence[BatchSchedule]],
    public_indices: Indices,
) -> list[HostBatches]:
    """Return the batches of each phase on the host; clients must be sorted by steps, most first.

    Uses no device, so a thread may call it while another one captures CUDA graphs.

    Args:
        data: Data of each phase: private or public.
        indices: Indices of each client's training samples in the pool.
        schedules: Batch schedules of each client, one entry per phase.
        public_indices: Indices of the public samples that all clients hold.
    """
    sources = {"private": indices, "public": [public_indices] * len(indices)}
    numbers = range(len(schedules[0]))
    return [_host_batches(data[n], sources[data[n]], [phases[n] for phases in schedules]) for n in numbers]


def to_phases(program: ClientProgram, batches: Sequence[HostBatches]) -> list[PhaseBatches]:
    """Copy the batches of each phase to the device, without a synchronization."""
    return [_to_phase(phase, program.source(phase.data).device) for phase in batches]


def all_batches(
    program: ClientProgram,
    indices: Sequence[Indices],
    schedules: Sequence[Sequence[BatchSchedule]],
    public_indices: Indices,
) -> list[PhaseBatches]:
    """Return the batches of each phase on the device; see `host_batches`."""
    return to_phases(program, host_batches(phase_data(program), indices, schedules, public_indices))


def index_table(
    program: ClientProgram, indices: Sequence[Indices], schedules: Sequence[Sequence[BatchSchedule]], keep: bool = False
) -> IndexTable:
    """Return the sample indices, masks and step counts of the clients.

    Args:
        program: Algorithm, task and data.
        indices: Indices of each client's training samples in the pool.
        schedules: Batch schedules of each client, one entry per phase.
        keep: Whether the pool caches the table for other rounds of the same clients.
    """
    pool = program.pool
    make = partial(_indices_and_mask, pool, indices)
    table, mask = pool.index_tables.get_or_make(indices, make) if keep else make()
    if keep and table.is_cuda:  # the cache may free it while this stream still reads it
        for tensor in (table, mask):
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return IndexTable(table, mask, to_device([sum(map(len, phases)) for phases in schedules], pool.device, pool.dtype))


def _indices_and_mask(pool: Pool, indices: Sequence[Indices]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, indices))
    full = [each if len(each) == longest else np.resize(each, longest) for each in indices]
    table = to_device(np.stack(full), pool.device)
    sizes = [len(each) for each in indices]
    if min(sizes) == longest:
        return table, torch.ones(len(indices), longest, dtype=pool.dtype, device=pool.device)
    size = to_device(sizes, pool.device)
    return table, (torch.arange(longest, device=pool.device) < size[:, None]).to(pool.dtype)


def _host_batches(data: str, indices: Sequence[Indices], schedules: Sequence[BatchSchedule]) -> HostBatches:
    index, weight, lengths = batch_tables(list(zip(schedules, indices, strict=True)))
    active = np.arange(len(index))[:, None] < lengths
    padded = (active & (weight.min(2, initial=1) == 0)).any(1).tolist()
    keys, noise = [each.key for each in schedules], [each.noise for each in schedules if each.noise is not None]
    return HostBatches(data, index, weight, keys, active.sum(1).tolist(), padded, noise)


def _to_phase(batches: HostBatches, device: torch.device) -> PhaseBatches:
    key = to_device(batches.keys, device)
    indices, weight = to_device(batches.indices, device).long(), to_device(batches.weight, device)
    return PhaseBatches(indices, weight, key, batches.widths, batches.padded, batches.noise)


def stack_order(steps: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    """Partition clients into few lists such that steps never increase along a list, in any phase.

    One list is enough unless the order of clients by steps differs between phases.

    Args:
        steps: Number of steps of each client, one entry per phase.
        sizes: Number of training samples of each client.

    >>> stack_order([[1], [3], [2]], sizes=[4, 12, 8])
    [[1, 2, 0]]
    >>> stack_order([[1, 5], [3, 2]], sizes=[4, 12])
    [[0], [1]]
    """
    if all(phases == steps[0] for phases in steps):
        return [sorted(range(len(steps)), key=lambda k: -sizes[k])] if steps else []
    lists: list[list[int]] = []
    for k in sorted(range(len(steps)), key=lambda k: (-sum(steps[k]), -sizes[k], k)):
        fits = (group for group in lists if all(a >= b for a, b in zip(steps[group[-1]], steps[k], strict=True)))
        group = next(fits, None)
        if group is None:
            lists.append([k])
        else:
            group.append(k)
    return lists
