"""The tables of a job: what its clients train on, as index tables on the device.

They follow from the clients' samples and batches alone, so that they can be made ahead of a round, while a GPU trains
the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedhead.core.batching import BatchSchedule, batch_tables
from fedhead.core.transfer import to_device
from fedhead.data.allocation import Rows
from fedhead.executors.program import Program
from fedhead.executors.steps import PhaseBatches


class RowTable(NamedTuple):
    """The clients' samples; a client with fewer than the others repeats its own, with a mask of 0."""

    rows: Tensor  # [K, longest]
    mask: Tensor  # [K, longest]
    steps: Tensor  # [K], of all phases


@dataclass(frozen=True)
class JobTables:
    """The tables of a stack of clients."""

    rows: RowTable
    batches: list[PhaseBatches]  # of each phase


def all_batches(
    program: Program, rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]], public_rows: Rows
) -> list[PhaseBatches]:
    """Return the batches of each phase, of clients that are sorted by their numbers of steps, most first.

    Args:
        program: What each client does.
        rows: Each client's training rows in the pool of samples.
        schedules: The batches of each client, one entry per phase.
        public_rows: The rows of the samples that all clients hold.
    """
    phases = range(len(schedules[0]))
    return [_phase_batches(program, phase, rows, [own[phase] for own in schedules], public_rows) for phase in phases]


def row_table(program: Program, rows: Sequence[Rows], schedules: Sequence[Sequence[BatchSchedule]]) -> RowTable:
    """Return the clients' samples, and their steps."""
    pool = program.pool
    longest = max(map(len, rows))
    different, which = _distinct([(mine,) for mine in rows])
    full = [mine if len(mine) == longest else np.resize(mine, longest) for (mine,) in different]
    table = to_device(np.stack(full), pool.device)
    if len(different) < len(rows):
        table = table[to_device(which, pool.device)]
    sizes = [len(mine) for mine in rows]
    if min(sizes) == longest:
        mask = torch.ones(len(rows), longest, dtype=pool.dtype, device=pool.device)
    else:
        size = to_device(sizes, pool.device)
        mask = (torch.arange(longest, device=pool.device) < size[:, None]).to(pool.dtype)
    return RowTable(table, mask, to_device([sum(map(len, own)) for own in schedules], pool.device, pool.dtype))


def _phase_batches(
    program: Program, phase: int, rows: Sequence[Rows], schedules: Sequence[BatchSchedule], public_rows: Rows
) -> PhaseBatches:
    data = program.algorithm.phases(program.task)[phase].data
    pool = program.source(data)
    held = rows if data == "private" else [public_rows] * len(rows)
    different, which = _distinct(list(zip(schedules, held, strict=True)))
    index, weight, lengths = batch_tables(different)
    key = to_device([schedule.key for schedule in schedules], pool.device)
    on = (to_device(index, pool.device).long(), to_device(weight, pool.device))
    if len(different) < len(rows):
        place = to_device(which, pool.device)
        on = (on[0].index_select(1, place), on[1].index_select(1, place))
    active = np.arange(len(index))[:, None] < lengths
    widths = active[:, which].sum(1).tolist()
    padded = (active & (weight.min(2, initial=1) == 0)).any(1).tolist()
    return PhaseBatches(*on, key, widths, padded)


def _distinct(items: list[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return each combination of objects once, and which of them stands at each place.

    Runs that train together on the same data have batches and rows in common.
    """
    found: dict[tuple[int, ...], int] = {}
    different: list[tuple[Any, ...]] = []
    which: list[int] = []
    for item in items:
        key = tuple(map(id, item))
        if key not in found:
            found[key] = len(different)
            different.append(item)
        which.append(found[key])
    return different, which
