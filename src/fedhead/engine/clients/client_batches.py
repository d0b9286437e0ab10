"""The batches that clients train on in a round, and their tables: made in the round, or ahead while a GPU trains."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.task import Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training import batching
from fedhead.core.training.batching import BatchSchedule, DrawArguments
from fedhead.data.partitions.allocation import Rows
from fedhead.data.pool import Pool
from fedhead.engine.clients import local_schedule
from fedhead.engine.clients.local_schedule import TRAIN
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

FEW = 1 << 14  # samples that are drawn at once, sooner than a thread would have taken over

Draws = list[list[DrawArguments]]  # of each client's phases
Schedules = list[list[BatchSchedule]]


class _Ahead(NamedTuple):
    """The batches of a round that were begun ahead of it."""

    round: int
    clients: list[int]
    schedules: Schedules | Future[Schedules]
    tables: JobTables | None


class ClientBatches:
    """The batches of all clients, of the present round or of the next one.

    Args:
        rows: Each client's training rows.
        public: The samples that all clients hold.
        stragglers: Who does only a part of the work, in rounds.
    """

    def __init__(self, rows: Sequence[Rows], public: Pool | None, stragglers: Stragglers | None):
        self._rows, self._public, self._stragglers = rows, public, stragglers
        self._worker: ThreadPoolExecutor | None = None
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
            label: `local_schedule.TRAIN`, or the stage's.
        """
        ahead = self._ahead.pop(group, None)
        if ahead is not None and (label, round, clients) == (TRAIN, ahead.round, ahead.clients):
            drawn = ahead.schedules
            return drawn.result() if isinstance(drawn, Future) else drawn, ahead.tables
        return _draw(self._draws(algorithm, task, clients, round, label)), None

    def empty(self, algorithm: Algorithm, task: Task, clients: list[int], round: int, label: str) -> Schedules:
        """Return batches of the same shapes as `of_round` does, for work in which nothing is trained."""
        draws = self._draws(algorithm, task, clients, round, label)
        return [list(map(batching.empty_batches, mine)) for mine in draws]

    def forget(self) -> None:
        """Drop batches that were drawn ahead and not asked for, and their tables."""
        self._ahead.clear()

    def wait(self) -> None:
        """Wait until all that was begun is done."""
        if self._worker is not None:
            self._worker.submit(int).result()  # it comes after all else

    def begin(self, program: ClientProgram, group: int, clients: list[int], round: int, tables: bool) -> None:
        """Begin to draw the batches of clients in a later round of training, and to put them into tables.

        Few samples are drawn at once. Many are drawn by a thread, which also makes the tables, without the device.

        Args:
            program: What the clients do.
            group: The number of their architecture.
            clients: Numbers of the clients.
            round: Number of the round.
            tables: Whether to make tables, for a stack that takes all of these clients at once.
        """
        draws = self._draws(program.algorithm, program.task, clients, round, TRAIN)
        steps = [list(map(batching.count_steps, mine)) for mine in draws]
        orders = stack_order(steps, [len(self._rows[k]) for k in clients]) if tables and all(draws) else []
        places = orders[0] if len(orders) == 1 else []
        rows = [self._rows[clients[place]] for place in places]
        made: JobTables | None = None
        if sum(draw.n * draw.epochs for mine in draws for draw in mine) <= FEW:
            schedules = _draw(draws)
            if places:
                ordered = [schedules[place] for place in places]
                batches = all_batches(program, rows, ordered, self.public_rows)
                made = JobTables(places, row_table(program, rows, ordered, keep=True), batches)
            self._ahead[group] = _Ahead(round, clients, schedules, made)
            return
        self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="batches")
        drawing = self._worker.submit(_draw, draws)
        data, public_rows = phase_data(program), self.public_rows

        def make() -> list[HostBatches]:  # by the thread that has drawn them before, so that it does not wait
            schedules = drawing.result()
            return host_batches(data, rows, [schedules[place] for place in places], public_rows)

        if places:
            made = JobTables(places, None, self._worker.submit(make))
        self._ahead[group] = _Ahead(round, clients, drawing, made)

    def _draws(self, algorithm: Algorithm, task: Task, clients: Sequence[int], round: int, label: str) -> Draws:
        """Return what the batches of each client's phases are drawn from."""
        phases = algorithm.phases(task)
        for number, phase in enumerate(phases):
            if phase.data not in ("private", "public"):
                raise BadInput(f"{algorithm.name}: phase {number} trains on data={phase.data!r}: say private or public")
            if phase.data == "public" and self._public is None:
                raise BadInput(f"{algorithm.name} needs public data: give the federation some (public=...)")
        draws: Draws = []
        for client in clients:
            sizes = {"private": len(self._rows[client]), "public": len(self.public_rows)}
            draws.append(
                [
                    local_schedule.draw_arguments(
                        phase, number, task, client, round, label, sizes[phase.data], self._stragglers
                    )
                    for number, phase in enumerate(phases)
                ]
            )
        return draws


def _draw(draws: Draws) -> Schedules:
    """Draw the batches of each client's phases."""
    drawn = iter(batching.draw_all([draw for mine in draws for draw in mine]))
    return [[next(drawn) for _ in mine] for mine in draws]
