"""The tables of joined runs' batches: those that each run has made ahead, put together on the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from torch import Tensor

from fedhead.core.tree.transfer import to_device
from fedhead.executors.client.job import Job
from fedhead.executors.client.job_tables import JobTables
from fedhead.executors.client.steps import PhaseBatches
from fedhead.executors.stack.stack_order import stack_order


def merge_tables(jobs: Sequence[Job]) -> JobTables | None:
    """Return the tables of one stack of the clients of several jobs; None unless all of them have some.

    Args:
        jobs: The jobs, whose clients have their places in the stack's job one job after another.
    """
    tables = [job.tables for job in jobs if job.tables is not None]
    if len(tables) < len(jobs):
        return None
    steps = [[len(schedule) for schedule in own] for job in jobs for own in job.schedules]
    orders = stack_order(steps, [len(rows) for job in jobs for rows in job.rows])
    if len(orders) != 1:
        return None
    column = {place: at for at, place in enumerate(orders[0])}
    device = jobs[0].program.pool.device
    columns: list[Tensor] = []
    begin = 0
    for job, own in zip(jobs, tables, strict=True):
        columns.append(to_device([column[begin + place] for place in own.places], device))
        begin += len(job.clients)
    parts = [own.batches_on_device(job.program) for job, own in zip(jobs, tables, strict=True)]
    return JobTables(orders[0], None, [_merge_phase(phase, columns) for phase in zip(*parts, strict=True)])


def _merge_phase(parts: Sequence[PhaseBatches], columns: list[Tensor]) -> PhaseBatches:
    """Put the clients of each part into their columns; those with fewer steps are padded with a weight of 0.

    Args:
        parts: The batches of each run in a phase, [steps, its clients, batch].
        columns: Where each run's clients stand in the stack's tables, [steps, all clients, batch].
    """
    steps = max(len(part.rows) for part in parts)
    clients, batch = sum(map(len, columns)), parts[0].rows.shape[2]
    rows, weight = (t.new_zeros(steps, clients, batch) for t in (parts[0].rows, parts[0].weight))
    key = parts[0].key.new_empty(clients)
    for part, own in zip(parts, columns, strict=True):
        rows[: len(part.rows)].index_copy_(1, own, part.rows)
        weight[: len(part.rows)].index_copy_(1, own, part.weight)
        key.index_copy_(0, own, part.key)
    widths = [sum(each) for each in zip_longest(*(part.widths or [] for part in parts), fillvalue=0)]
    padded = [any(each) for each in zip_longest(*(part.padded for part in parts), fillvalue=False)]
    return PhaseBatches(rows, weight, key, widths, padded)
