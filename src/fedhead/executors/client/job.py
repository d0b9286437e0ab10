"""Job of an executor: the round of some clients of one architecture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from fedhead.algorithm.client import ClientInputs
from fedhead.core.training.batching import BatchSchedule
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees, as_rows
from fedhead.data.partitions.allocation import Indices
from fedhead.executors.client.client_round import PhaseBatches
from fedhead.executors.client.job_tables import IndexTable, JobTables, all_batches, index_table
from fedhead.executors.client.program import ClientProgram
from fedhead.executors.client.stack_errors import CannotStack

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """Inputs of a round for some clients of one architecture; lists have one entry per client.

    Args:
        program: Algorithm, task and data on the device.
        clients: Client numbers.
        broadcast: Broadcast to all clients.
        per_client: Additional message to each client.
        states: Client states, on the device or on the host.
        indices: Indices of each client's training samples in the pool.
        counts: Samples per class of each client.
        schedules: Batch schedules of each client, one entry per phase.
        public_indices: Indices of the public samples that all clients hold.
        lr: Learning rate of the round.
        round: Round number, counted from 1.
        compiled: Whether the steps must be compiled (True) or must not be (False), as recorded by the run that is
            resumed; None: the executor decides.
        tables: Precomputed index tables of all clients, in stack order.
    """

    program: ClientProgram
    clients: list[int]
    broadcast: Tree
    per_client: list[Tree]
    states: Sequence[Tree]
    indices: list[Indices]
    counts: list[Tensor]
    schedules: list[list[BatchSchedule]]
    public_indices: Indices
    lr: float
    round: int
    compiled: bool | None = None
    tables: JobTables | None = None

    def take(self, places: list[int]) -> Job:
        """Return the job for some of its clients.

        Args:
            places: Their positions in the job's lists.

        Returns:
            Job of these clients.
        """
        if places == list(range(len(self.clients))):
            return self

        def select(items: Sequence[T]) -> list[T]:
            return [items[i] for i in places]

        tables = self.tables
        return replace(
            self,
            clients=select(self.clients),
            per_client=select(self.per_client),
            states=as_rows(self.states).take(places),
            indices=select(self.indices),
            counts=select(self.counts),
            schedules=select(self.schedules),
            tables=replace(tables, places=list(range(len(places)))) if tables and tables.places == places else None,
        )

    def truncated(self, steps: int) -> Job:
        """Return the job with only a few steps per phase, for timing.

        Args:
            steps: Maximum number of steps per phase.

        Returns:
            Shorter job.
        """
        short = [
            [replace(phase, positions=phase.positions[:steps], weight=phase.weight[:steps]) for phase in phases]
            for phases in self.schedules
        ]
        return replace(self, schedules=short, tables=None)

    # -- tensors ----------------------------------------------------------------------------------
    def inputs(self, k: int) -> ClientInputs:
        """Return the inputs of one client's hooks.

        Args:
            k: Position of the client in the job's lists.

        Returns:
            Inputs without a client axis.
        """
        state = self._on_device(self.states[k])
        table = index_table(self.program, [self.indices[k]], [self.schedules[k]])
        return self._inputs(self.per_client[k], state, self.counts[k], IndexTable(*(t[0] for t in table)))

    def stacked_inputs(self) -> ClientInputs:
        """Return the inputs of all clients with a client axis."""
        if isinstance(self.states, StackedTrees):
            states = self.states.copied_rows()
        else:
            states = self._stack([self._on_device(state) for state in self.states], "holds")
        received = self._stack(self.per_client, "receives")
        ahead = self._tables_in_order
        table = None if ahead is None else ahead.indices
        if table is None:
            table = index_table(self.program, self.indices, self.schedules, keep=True)
        return self._inputs(received, states, torch.stack(self.counts), table)

    @property
    def _tables_in_order(self) -> JobTables | None:
        """Precomputed tables if they match the current order of the clients."""
        ahead = self.tables
        return None if ahead is None or ahead.places != list(range(len(self.clients))) else ahead

    def _stack(self, trees: list[Tree], verb: str) -> Tree:
        """Stack the clients' trees, which must have the same schema."""

        def rows(*each: Tensor) -> Tensor:
            if any(t.dtype != each[0].dtype for t in each):  # torch.stack would promote them
                raise TypeError("dtypes differ")
            return torch.stack(each)

        first, *others = trees
        try:
            stacked: Tree = first.map(rows, *others)
            return stacked
        except (KeyError, RuntimeError, TypeError) as error:
            wanted = schema(trees[0])
            for client, other in zip(self.clients, map(schema, trees), strict=True):
                if odd := [name for name in (*wanted, *other) if wanted.get(name) != other.get(name)]:
                    raise CannotStack(
                        f"executor stack: {self.program.algorithm.name}: client {client} {verb} "
                        f"{_entry(odd[0], other)}, but client {self.clients[0]} {_entry(odd[0], wanted)}: clients of "
                        "one stack need the same names, shapes and dtypes; pad what differs, or use executor=loop"
                    ) from error
            raise

    def _on_device(self, state: Tree) -> Tree:
        """Move a client's state to the device, unless it is there."""
        device = self.program.pool.device
        first = next(state.tensors(), None)
        return state if first is None or first.device.type == device.type else state.to(device)

    def _inputs(self, per_client: Tree, state: Tree, counts: Tensor, table: IndexTable) -> ClientInputs:
        pool, device = self.program.pool, self.program.pool.device
        rate = min(self.lr, torch.finfo(pool.dtype).max)  # a larger rate diverges as well
        lr = torch.full((), rate, dtype=pool.dtype, device=device)  # on a GPU faster than a copy from the host
        round = torch.full((), self.round, dtype=torch.int64, device=device)
        return ClientInputs(self.broadcast, per_client, state, counts, *table, lr, round)

    def batches(self, k: int) -> list[PhaseBatches]:
        """Return the batches of one client.

        Args:
            k: Position of the client in the job's lists.

        Returns:
            One entry per phase.
        """
        stacked = all_batches(self.program, [self.indices[k]], [self.schedules[k]], self.public_indices)
        return [PhaseBatches(b.indices[:, 0], b.weight[:, 0], b.key[0], None, b.padded, b.noise) for b in stacked]

    def stacked_batches(self) -> list[PhaseBatches]:
        """Return the batches of all clients with a client axis; clients must be sorted by steps, most first."""
        if (ahead := self._tables_in_order) is not None:
            return ahead.batches_on_device(self.program)
        return all_batches(self.program, self.indices, self.schedules, self.public_indices)


def _entry(name: str, form: Schema) -> str:
    """Describe an entry of a tree for an error message."""
    if name not in form:
        return f"no {name!r}"
    shape, dtype = form[name]
    return f"{name!r} of shape {shape}, {dtype}"
