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
from fedhead.data.partitions.allocation import Rows
from fedhead.data.pool import Pool
from fedhead.executors.client.client_round import PhaseBatches
from fedhead.executors.client.program import ClientProgram


class RowTable(NamedTuple):
    """Sample indices of the clients; shorter rows are padded with repeated samples, whose mask is 0."""

    rows: Tensor  # [K, longest]
    mask: Tensor  # [K, longest]
    steps: Tensor  # [K], sum over phases


class HostBatches(NamedTuple):
    """Batches of a phase on the host."""

    data: str  # private or public
    rows: NDArray[np.int32]  # [steps, clients, batch]
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
        rows: Sample indices of the clients; None: not yet copied to the device.
        batches: Batches of each phase on the device, or a future that computes them on the host.
    """

    places: list[int]
    rows: RowTable | None
    batches: list[PhaseBatches] | Future[list[HostBatches]]

    def batches_on_device(self, program: ClientProgram) -> list[PhaseBatches]:
        """Return the batches of each phase; waits for the background thread."""
        return to_phases(program, self.batches.result()) if isinstance(self.batches, Future) else self.batches


def phase_data(program: ClientProgram) -> list[str]:
    """Return the data of each phase: private or public."""
    return [phase.data for phase in program.algorithm.phases(program.task)]


def host_batches(
    data: Sequence[str], rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]], public_rows: Rows
) -> list[HostBatches]:
    """Return the batches of each phase on the host; clients must be sorted by steps, most first.

    Uses no device, so a thread may call it while another one captures CUDA graphs.

    Args:
        data: Data of each phase: private or public.
        rows: Indices of each client's training samples in the pool.
        schedules: Batch schedules of each client, one entry per phase.
        public_rows: Indices of the public samples that all clients hold.
    """
    sources = {"private": rows, "public": [public_rows] * len(rows)}
    numbers = range(len(schedules[0]))
    return [_host_batches(data[n], sources[data[n]], [phases[n] for phases in schedules]) for n in numbers]


def to_phases(program: ClientProgram, batches: Sequence[HostBatches]) -> list[PhaseBatches]:
    """Copy the batches of each phase to the device, without a synchronization."""
    return [_to_phase(phase, program.source(phase.data).device) for phase in batches]


def all_batches(
    program: ClientProgram, rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]], public_rows: Rows
) -> list[PhaseBatches]:
    """Return the batches of each phase on the device; see `host_batches`."""
    return to_phases(program, host_batches(phase_data(program), rows, schedules, public_rows))


def row_table(
    program: ClientProgram, rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]], keep: bool = False
) -> RowTable:
    """Return the sample indices, masks and step counts of the clients.

    Args:
        program: Algorithm, task and data.
        rows: Indices of each client's training samples in the pool.
        schedules: Batch schedules of each client, one entry per phase.
        keep: Whether the pool caches the table for other rounds of the same clients.
    """
    pool = program.pool
    make = partial(_rows_and_mask, pool, rows)
    table, mask = pool.row_tables.get_or_make(rows, make) if keep else make()
    if keep and table.is_cuda:  # the cache may free it while this stream still reads it
        for tensor in (table, mask):
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return RowTable(table, mask, to_device([sum(map(len, phases)) for phases in schedules], pool.device, pool.dtype))


def _rows_and_mask(pool: Pool, rows: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    full = [indices if len(indices) == longest else np.resize(indices, longest) for indices in rows]
    table = to_device(np.stack(full), pool.device)
    sizes = [len(indices) for indices in rows]
    if min(sizes) == longest:
        return table, torch.ones(len(rows), longest, dtype=pool.dtype, device=pool.device)
    size = to_device(sizes, pool.device)
    return table, (torch.arange(longest, device=pool.device) < size[:, None]).to(pool.dtype)


def _host_batches(data: str, rows: Sequence[Rows], schedules: Sequence[BatchSchedule]) -> HostBatches:
    index, weight, lengths = batch_tables(list(zip(schedules, rows, strict=True)))
    active = np.arange(len(index))[:, None] < lengths
    padded = (active & (weight.min(2, initial=1) == 0)).any(1).tolist()
    keys, noise = [each.key for each in schedules], [each.noise for each in schedules if each.noise is not None]
    return HostBatches(data, index, weight, keys, active.sum(1).tolist(), padded, noise)


def _to_phase(batches: HostBatches, device: torch.device) -> PhaseBatches:
    key = to_device(batches.keys, device)
    rows, weight = to_device(batches.rows, device).long(), to_device(batches.weight, device)
    return PhaseBatches(rows, weight, key, batches.widths, batches.padded, batches.noise)


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
