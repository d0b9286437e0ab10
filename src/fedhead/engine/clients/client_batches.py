"""The batches that clients train on in a round, and their tables: made in the round, or ahead while a GPU trains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.task import Task
from fedhead.core.training import batching
from fedhead.core.training.batching import BatchSchedule, DrawArguments
from fedhead.data.partitions.allocation import Rows
from fedhead.data.pool import Pool
from fedhead.engine.clients.local_schedule import TRAIN, LocalSchedule
from fedhead.engine.clients.prefetch import Prefetcher
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.executors.client.job_tables import (
    HostBatches,
    JobTables,
    all_batches,
    host_batches,
    phase_data,
    row_table,
    stack_order,
)
from fedhead.executors.client.program import ClientProgram

Draws = list[list[DrawArguments]]  # of each client's phases
Schedules = list[list[BatchSchedule]]


class _Ahead(NamedTuple):
    """The batches of a round that were begun ahead of it."""

    round: int
    clients: list[int]
    draws: Draws
    schedules: Schedules | None = None  # None: the prefetcher has them
    tables: JobTables | None = None


class ClientBatches:
    """The batches of all clients, of the present round or of the next one.

    Args:
        rows: Each client's training rows.
        public: The samples that all clients hold.
        stragglers: Who does only a part of the work, in rounds.
        prefetch: Draws the batches.
    """

    def __init__(self, rows: Sequence[Rows], public: Pool | None, stragglers: Stragglers | None, prefetch: Prefetcher):
        self._rows, self._public, self._prefetch = rows, public, prefetch
        self._local_work = LocalSchedule(rows, public, stragglers)
        self._begun: list[DrawArguments] = []  # of the next round
        self._ahead: dict[int, _Ahead] = {}  # by architecture

    @cached_property
    def public_rows(self) -> Rows:
        """The rows of the samples that all clients hold."""
        return np.arange(0 if self._public is None else len(self._public), dtype=np.int64)

    def of_round(
        self, algorithm: Algorithm, task: Task, group: int, clients: list[int], round: int, label: str
    ) -> tuple[Schedules, JobTables | None]:
        """Return the batches of each client's phases in an exchange, and their tables if these were made ahead.

        Args:
            algorithm: A method or a stage.
            task: Sizes and settings, of the clients' architecture.
            group: The architecture's number.
            clients: Numbers of the clients.
            round: Number of the round.
            label: `local_work.TRAIN`, or the stage's.
        """
        ahead = self._ahead.pop(group, None)
        if ahead is not None and (label, round, clients) == (TRAIN, ahead.round, ahead.clients):
            return ahead.schedules or self._drawn(ahead.draws), ahead.tables
        return self._drawn(self._local_work.draws(algorithm, task, clients, round, label)), None

    def empty(self, algorithm: Algorithm, task: Task, clients: list[int], round: int, label: str) -> Schedules:
        """Return batches of the same shapes as `of_round` does, for work in which nothing is trained."""
        return [
            [batching.empty_batches(own.n, own.batch_size, own.epochs, own.drop_last, own.most) for own in mine]
            for mine in self._local_work.draws(algorithm, task, clients, round, label)
        ]

    def forget(self) -> None:
        """Drop batches that were drawn ahead and not asked for, and their tables."""
        self._prefetch.forget(self._begun)
        self._begun.clear()
        self._ahead.clear()

    def begin(self, program: ClientProgram, group: int, clients: list[int], round: int, tables: bool) -> None:
        """Begin to draw the batches of clients in a later round of training, and to put them into tables.

        Args:
            program: What the clients do.
            group: The number of their architecture.
            clients: Numbers of the clients.
            round: Number of the round.
            tables: Whether to make tables, for a stack that takes all of these clients at once.
        """
        draws = self._local_work.draws(program.algorithm, program.task, clients, round, TRAIN)
        begun = [draw for mine in draws for draw in mine]
        drawn = self._prefetch.begin(begun)
        self._begun += begun
        self._ahead[group] = ahead = _Ahead(round, clients, draws)
        if not tables or not all(draws):
            return
        rows = [self._rows[k] for k in clients]
        orders = stack_order([list(map(batching.count_steps, mine)) for mine in draws], list(map(len, rows)))
        if len(orders) == 1:
            make = self._make_tables if drawn else self._begin_tables
            self._ahead[group] = make(program, ahead, rows, orders[0])

    def _drawn(self, draws: Draws) -> Schedules:
        found = iter(self._prefetch.schedules([own for mine in draws for own in mine]))
        return [[next(found) for _ in mine] for mine in draws]

    def _make_tables(self, program: ClientProgram, ahead: _Ahead, rows: list[Rows], places: list[int]) -> _Ahead:
        """Make the tables of batches that were drawn, of clients in the order of a stack."""
        schedules = self._drawn(ahead.draws)
        rows, ordered = [rows[k] for k in places], [schedules[k] for k in places]
        batches = all_batches(program, rows, ordered, self.public_rows)
        own_rows = row_table(program, rows, ordered, keep=True)
        return ahead._replace(schedules=schedules, tables=JobTables(places, own_rows, batches))

    def _begin_tables(self, program: ClientProgram, ahead: _Ahead, rows: list[Rows], places: list[int]) -> _Ahead:
        """Let the thread that draws the batches make the tables of them, for which it needs no device."""
        data, rows, public_rows = phase_data(program), [rows[k] for k in places], self.public_rows

        def make(drawn: list[BatchSchedule]) -> list[HostBatches]:
            each = iter(drawn)
            return host_batches(data, rows, [[next(each) for _ in data] for _ in rows], public_rows)

        batches = self._prefetch.then([draw for k in places for draw in ahead.draws[k]], make)
        return ahead._replace(tables=JobTables(places, None, batches))
