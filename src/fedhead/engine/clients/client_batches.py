"""Batches of the clients and their index tables, drawn on demand or ahead of a round while a GPU trains."""

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
from fedhead.data.partitions.allocation import Indices
from fedhead.data.pool import Pool
from fedhead.engine.clients import local_schedule
from fedhead.engine.clients.local_schedule import TRAIN
from fedhead.engine.clients.private_rounds import PrivateSamples
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.executors.client.job_tables import (
    HostBatches,
    JobTables,
    all_batches,
    host_batches,
    index_table,
    phase_data,
    stack_order,
)
from fedhead.executors.client.program import ClientProgram

FEW = 1 << 14  # samples; below this, drawing is faster than starting a background task

Draws = list[list[DrawArguments]]  # by client and phase
Schedules = list[list[BatchSchedule]]


class _Ahead(NamedTuple):
    """Batches of a later round, drawn ahead."""

    round: int
    clients: list[int]
    schedules: Schedules | Future[Schedules]
    tables: JobTables | None


class ClientBatches:
    """Batches of all clients, for the current round or the next one.

    Args:
        indices: Indices of each client's training samples.
        public: Public samples, which all clients hold.
        stragglers: Policy for late clients, which train only partially.
        private: Account of DP-SGD; None: no noise.
    """

    def __init__(
        self,
        indices: Sequence[Indices],
        public: Pool | None,
        stragglers: Stragglers | None,
        private: PrivateSamples | None = None,
    ):
        self._indices, self._public, self._stragglers, self._private = indices, public, stragglers, private
        self._worker: ThreadPoolExecutor | None = None
        self._ahead: dict[int, _Ahead] = {}  # by architecture

    @cached_property
    def public_indices(self) -> Indices:
        """Indices of the public samples."""
        return np.arange(0 if self._public is None else len(self._public), dtype=np.int64)

    def of_round(
        self, algorithm: Algorithm, task: Task, group: int, clients: list[int], round: int, label: str
    ) -> tuple[Schedules, JobTables | None]:
        """Return the batches of each client's phases, and their index tables if they were built ahead.

        Args:
            algorithm: Method or stage.
            task: Task of the clients' architecture.
            group: Number of the architecture.
            clients: Client numbers.
            round: Number of the round.
            label: `local_schedule.TRAIN`, or the label of a stage.
        """
        ahead = self._ahead.pop(group, None)
        if ahead is not None and (label, round, clients) == (TRAIN, ahead.round, ahead.clients):
            drawn = ahead.schedules
            return drawn.result() if isinstance(drawn, Future) else drawn, ahead.tables
        return _draw(self._draws(algorithm, task, clients, round, label)), None

    def empty(self, algorithm: Algorithm, task: Task, clients: list[int], round: int, label: str) -> Schedules:
        """Return empty batches with the shapes of `of_round`, for jobs without training."""
        draws = self._draws(algorithm, task, clients, round, label)
        return [list(map(batching.empty_batches, phases)) for phases in draws]

    def forget(self) -> None:
        """Discard batches and index tables that were drawn ahead."""
        self._ahead.clear()

    def wait(self) -> None:
        """Wait for all background tasks."""
        if self._worker is not None:
            self._worker.submit(int).result()  # the single worker runs it last

    def begin(self, program: ClientProgram, group: int, clients: list[int], round: int, tables: bool) -> None:
        """Start drawing the batches of a later training round, and building their index tables.

        Small draws run immediately. Large ones run in a background thread, which builds the tables on the host.

        Args:
            program: Client program.
            group: Number of the architecture.
            clients: Client numbers.
            round: Number of the round.
            tables: Whether to build index tables, for a stack of all these clients.
        """
        draws = self._draws(program.algorithm, program.task, clients, round, TRAIN)
        steps = [list(map(batching.count_steps, phases)) for phases in draws]
        orders = stack_order(steps, [len(self._indices[k]) for k in clients]) if tables and all(draws) else []
        order = orders[0] if len(orders) == 1 else []
        indices = [self._indices[clients[index]] for index in order]
        job_tables: JobTables | None = None
        if sum(draw.n * draw.epochs for phases in draws for draw in phases) <= FEW:
            schedules = _draw(draws)
            if order:
                ordered = [schedules[index] for index in order]
                batches = all_batches(program, indices, ordered, self.public_indices)
                job_tables = JobTables(order, index_table(program, indices, ordered, keep=True), batches)
            self._ahead[group] = _Ahead(round, clients, schedules, job_tables)
            return
        self._worker = self._worker or ThreadPoolExecutor(1, thread_name_prefix="batches")
        drawing = self._worker.submit(_draw, draws)
        data, public_indices = phase_data(program), self.public_indices

        def build() -> list[HostBatches]:  # same thread as the drawing, so result() does not block
            schedules = drawing.result()
            return host_batches(data, indices, [schedules[index] for index in order], public_indices)

        if order:
            job_tables = JobTables(order, None, self._worker.submit(build))
        self._ahead[group] = _Ahead(round, clients, drawing, job_tables)

    def _draws(self, algorithm: Algorithm, task: Task, clients: Sequence[int], round: int, label: str) -> Draws:
        """Return the draw arguments of each client's phases."""
        phases = algorithm.phases(task)
        for number, phase in enumerate(phases):
            if phase.data not in ("private", "public"):
                raise BadInput(f"{algorithm.name}: phase {number} trains on data={phase.data!r}: use private or public")
            if phase.data == "public" and self._public is None:
                raise BadInput(f"{algorithm.name} needs public data: give the federation some (public=...)")
        draws: Draws = []
        for client in clients:
            sizes = {"private": len(self._indices[client]), "public": len(self.public_indices)}
            drawn = [
                local_schedule.draw_arguments(
                    phase, number, task, client, round, label, sizes[phase.data], self._stragglers
                )
                for number, phase in enumerate(phases)
            ]
            if self._private is not None and label == TRAIN:
                noise = self._private.multiplier(client, sizes["private"])
                key = self._private.batch_key
                drawn = [
                    draw._replace(multiplier=noise, key=key(draw.key)) if phase.data == "private" else draw
                    for phase, draw in zip(phases, drawn, strict=True)
                ]
            draws.append(drawn)
        return draws


def _draw(draws: Draws) -> Schedules:
    """Draw the batches of each client's phases."""
    drawn = iter(batching.draw_all([draw for phases in draws for draw in phases]))
    return [[next(drawn) for _ in phases] for phases in draws]
