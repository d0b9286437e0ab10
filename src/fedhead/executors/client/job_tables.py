"""The tables of a job: what its clients train on, as index tables on the device.

They follow from the clients' samples and batches alone, so that they can be made ahead of a round, while a GPU trains
the one before it: on the host with numpy alone, which another thread may do, and from there copied to the device.
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

from fedhead.core.training.batching import BatchSchedule, batch_tables
from fedhead.core.tree.transfer import to_device
from fedhead.data.partitions.allocation import Rows
from fedhead.data.pool import Pool
from fedhead.executors.client.client_round import PhaseBatches
from fedhead.executors.client.program import ClientProgram


class RowTable(NamedTuple):
    """The clients' samples; a client with fewer than the others repeats its own, with a mask of 0."""

    rows: Tensor  # [K, longest]
    mask: Tensor  # [K, longest]
    steps: Tensor  # [K], of all phases


class HostBatches(NamedTuple):
    """The batches of a phase on the host."""

    data: str  # what the phase trains on
    rows: NDArray[np.int32]  # [steps, clients, batch]
    weight: NDArray[np.float32]  # [steps, clients, batch]
    keys: list[int]  # of each client
    widths: list[int]  # see PhaseBatches
    padded: list[bool]


@dataclass(frozen=True)
class JobTables:
    """The tables of a stack of clients that were made ahead.

    Args:
        places: The clients that they were made for, as indices in the job's lists, in the stack's order.
        rows: The clients' samples; None: they are yet to be copied to the device.
        batches: The batches of each phase, on the device, or as another thread makes them on the host.
    """

    places: list[int]
    rows: RowTable | None
    batches: list[PhaseBatches] | Future[list[HostBatches]]

    def batches_on_device(self, program: ClientProgram) -> list[PhaseBatches]:
        """Return the batches of each phase; if another thread still makes them, it is waited for."""
        return to_phases(program, self.batches.result()) if isinstance(self.batches, Future) else self.batches


def phase_data(program: ClientProgram) -> list[str]:
    """Return what each phase trains on: private or public samples."""
    return [phase.data for phase in program.algorithm.phases(program.task)]


def host_batches(
    data: Sequence[str], rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]], public_rows: Rows
) -> list[HostBatches]:
    """Return the batches of each phase on the host, of clients that are sorted by their numbers of steps, most first.

    Nothing of it concerns a device, so that a thread may do it while another one captures CUDA graphs.

    Args:
        data: What each phase trains on.
        rows: Each client's training rows in the pool of samples.
        schedules: The batches of each client, one entry per phase.
        public_rows: The rows of the samples that all clients hold.
    """
    held = {"private": rows, "public": [public_rows] * len(rows)}
    phases = range(len(schedules[0]))
    return [_host_batches(data[phase], held[data[phase]], [own[phase] for own in schedules]) for phase in phases]


def to_phases(program: ClientProgram, batches: Sequence[HostBatches]) -> list[PhaseBatches]:
    """Return the batches of each phase on the device, without waiting for it."""
    return [_to_phase(own, program.source(own.data).device) for own in batches]


def all_batches(
    program: ClientProgram, rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]], public_rows: Rows
) -> list[PhaseBatches]:
    """Return the batches of each phase on the device; see `host_batches`."""
    return to_phases(program, host_batches(phase_data(program), rows, schedules, public_rows))


def row_table(
    program: ClientProgram, rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]], keep: bool = False
) -> RowTable:
    """Return the clients' samples, and their steps.

    Args:
        program: What each client does.
        rows: Each client's training rows in the pool of samples.
        schedules: The batches of each client, one entry per phase.
        keep: Whether the pool keeps the table of the rows, for other rounds of the same clients.
    """
    pool = program.pool
    make = partial(_rows_and_mask, pool, rows)
    table, mask = pool.row_tables.get_or_make(rows, make) if keep else make()
    if keep and table.is_cuda:  # it may be given up while another stream than that of its memory reads it
        for tensor in (table, mask):
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return RowTable(table, mask, to_device([sum(map(len, own)) for own in schedules], pool.device, pool.dtype))


def _rows_and_mask(pool: Pool, rows: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    full = [mine if len(mine) == longest else np.resize(mine, longest) for mine in rows]
    table = to_device(np.stack(full), pool.device)
    sizes = [len(mine) for mine in rows]
    if min(sizes) == longest:
        return table, torch.ones(len(rows), longest, dtype=pool.dtype, device=pool.device)
    size = to_device(sizes, pool.device)
    return table, (torch.arange(longest, device=pool.device) < size[:, None]).to(pool.dtype)


def _host_batches(data: str, rows: Sequence[Rows], schedules: Sequence[BatchSchedule]) -> HostBatches:
    index, weight, lengths = batch_tables(list(zip(schedules, rows, strict=True)))
    active = np.arange(len(index))[:, None] < lengths
    padded = (active & (weight.min(2, initial=1) == 0)).any(1).tolist()
    return HostBatches(data, index, weight, [schedule.key for schedule in schedules], active.sum(1).tolist(), padded)


def _to_phase(batches: HostBatches, device: torch.device) -> PhaseBatches:
    key = to_device(batches.keys, device)
    rows, weight = to_device(batches.rows, device).long(), to_device(batches.weight, device)
    return PhaseBatches(rows, weight, key, batches.widths, batches.padded)


def stack_order(steps: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[list[int]]:
    """Return the places of clients in as few lists as it takes for steps never to grow, in any phase.

    One list is enough unless clients do different amounts of work in some phases but not in others.

    Args:
        steps: Each client's steps, one entry per phase.
        sizes: Each client's training samples.

    >>> stack_order([[1], [3], [2]], sizes=[4, 12, 8])
    [[1, 2, 0]]
    >>> stack_order([[1, 5], [3, 2]], sizes=[4, 12])
    [[0], [1]]
    """
    if all(mine == steps[0] for mine in steps):
        return [sorted(range(len(steps)), key=lambda k: -sizes[k])] if steps else []
    lists: list[list[int]] = []
    for k in sorted(range(len(steps)), key=lambda k: (-sum(steps[k]), -sizes[k], k)):
        fits = (own for own in lists if all(a >= b for a, b in zip(steps[own[-1]], steps[k], strict=True)))
        found = next(fits, None)
        if found is None:
            lists.append([k])
        else:
            found.append(k)
    return lists
