"""A job: the work given to an executor, the round of some clients of one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhead.algorithm.client import ClientInputs
from fedhead.algorithm.phase import Reply
from fedhead.core.batching import BatchSchedule
from fedhead.core.schema import Schema, schema
from fedhead.core.tree import Tree
from fedhead.data.allocation import Rows
from fedhead.executors.program import Program
from fedhead.executors.shared_work import SharedWork
from fedhead.executors.stack_errors import CannotStack
from fedhead.executors.steps import PhaseBatches

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Job:
    """The round of some clients: what they receive, hold and see, in lists with one entry per client.

    Args:
        program: What each client does: the algorithm, its task, and the data on the device.
        clients: The clients' numbers.
        broadcast: What all of them receive.
        per_client: What each receives besides.
        states: What each has kept from earlier rounds, on the device or in the host's memory.
        rows: Each client's training rows in the pool of samples.
        counts: Each client's samples per class.
        schedules: The batches of each client, one entry per phase.
        public_rows: The rows of the samples that all clients hold.
        lr: The learning rate of the round.
        round: The round, counted from 1.
        numbers: Settings of each client's run, by name, where the job joins runs that differ in them; empty: as in the
            program.
        compiled: Whether the steps must be compiled, or must not be yet, as in the run that is resumed; None: the
            executor decides.
    """

    program: Program
    clients: list[int]
    broadcast: Tree
    per_client: list[Tree]
    states: list[Tree]
    rows: list[Rows]
    counts: list[Tensor]
    schedules: list[list[BatchSchedule]]
    public_rows: Rows
    lr: float
    round: int
    numbers: Sequence[Mapping[str, float]] = ()
    compiled: bool | None = None

    def take(self, places: list[int]) -> Job:
        """Return the same job for some of its clients.

        Args:
            places: Their indices in the job's lists.

        Returns:
            The smaller job.
        """

        if places == list(range(len(self.clients))):
            return self

        def select(items: list[T]) -> list[T]:
            return [items[i] for i in places]

        return replace(
            self,
            clients=select(self.clients),
            per_client=select(self.per_client),
            states=select(self.states),
            rows=select(self.rows),
            counts=select(self.counts),
            schedules=select(self.schedules),
            numbers=select(list(self.numbers)) if self.numbers else (),
        )

    def truncated(self, steps: int) -> Job:
        """Return the same job with only a few steps per phase, for timing.

        Args:
            steps: The most steps per phase.

        Returns:
            The shorter job.
        """
        short = [[BatchSchedule(s.positions[:steps], s.weight[:steps], s.key) for s in mine] for mine in self.schedules]
        return replace(self, schedules=short)

    # -- tensors ----------------------------------------------------------------------------------
    def inputs(self, k: int) -> ClientInputs:
        """Return what the hooks of one client see.

        Args:
            k: The client's index in the job's lists.

        Returns:
            The client's inputs.
        """
        assert not self.numbers, "only a stack joins runs with different numbers"
        state = self._on_device(self.states[k])
        return self._inputs(self.per_client[k], state, self.counts[k], *self._padded([k]), squeeze=True)

    def stacked_inputs(self) -> ClientInputs:
        """Return the inputs of all clients, with a client axis."""
        places = list(range(len(self.clients)))
        states = self._stack([self._on_device(state) for state in self.states], "holds")
        received = self._stack(self.per_client, "receives")
        return self._inputs(received, states, torch.stack(self.counts), *self._padded(places))

    def _stack(self, trees: list[Tree], verb: str) -> Tree:
        """Stack the clients' trees, which must have one form."""

        def rows(*each: Tensor) -> Tensor:
            if any(t.dtype != each[0].dtype for t in each):  # of which torch.stack would make one
                raise TypeError("dtypes differ")
            return torch.stack(each)

        try:
            return trees[0].map(rows, *trees[1:])
        except (KeyError, RuntimeError, TypeError) as error:
            first = schema(trees[0])
            for client, other in zip(self.clients, map(schema, trees), strict=True):
                if odd := [name for name in (*first, *other) if first.get(name) != other.get(name)]:
                    raise CannotStack(
                        f"executor stack: {self.program.algorithm.name}: client {client} {verb} "
                        f"{_shown(odd[0], other)}, but client {self.clients[0]} {_shown(odd[0], first)}: clients of "
                        "one stack need the same names, shapes and dtypes; pad what differs, or use executor=loop"
                    ) from error
            raise

    def _on_device(self, state: Tree) -> Tree:
        """A client's state where it trains; until then it may lie in the host's memory."""
        device = self.program.pool.device
        first = next(state.tensors(), None)
        return state if first is None or first.device.type == device.type else state.to(device)

    def _inputs(
        self, own: Tree, state: Tree, counts: Tensor, rows: Tensor, mask: Tensor, steps: Tensor, squeeze: bool = False
    ) -> ClientInputs:
        pool, device = self.program.pool, self.program.pool.device
        if squeeze:
            rows, mask, steps = rows[0], mask[0], steps[0]
        rate = min(self.lr, torch.finfo(pool.dtype).max)  # a larger one diverges as well
        lr = torch.full((), rate, dtype=pool.dtype, device=device)  # faster on a GPU than copying the number
        names = self.numbers[0] if self.numbers else ()
        numbers = {n: torch.tensor([each[n] for each in self.numbers], dtype=pool.dtype, device=device) for n in names}
        round = torch.full((), self.round, dtype=torch.int64, device=device)
        return ClientInputs(self.broadcast, own, state, counts, rows, mask, steps, lr, round, Tree(numbers))

    def _padded(self, places: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        pool = self.program.pool
        longest = max(len(self.rows[k]) for k in places)
        different, which = _distinct([(self.rows[k],) for k in places])
        full = [mine if len(mine) == longest else np.resize(mine, longest) for (mine,) in different]
        rows = torch.from_numpy(np.stack(full)).to(pool.device)
        if len(different) < len(places):
            rows = rows[torch.tensor(which, device=pool.device)]
        sizes = [len(self.rows[k]) for k in places]
        if min(sizes) == longest:
            mask = torch.ones(len(places), longest, dtype=pool.dtype, device=pool.device)
        else:
            size = torch.tensor(sizes, device=pool.device)
            mask = (torch.arange(longest, device=pool.device) < size[:, None]).to(pool.dtype)
        steps = [sum(map(len, self.schedules[k])) for k in places]
        return rows, mask, torch.tensor(steps, dtype=pool.dtype, device=pool.device)

    def batches(self, k: int) -> list[PhaseBatches]:
        """Return the batches of one client.

        Args:
            k: The client's index in the job's lists.

        Returns:
            One table of batches per phase.
        """
        return [self._batches([k], phase, squeeze=True) for phase in range(len(self.schedules[k]))]

    def stacked_batches(self) -> list[PhaseBatches]:
        """Return the batches of all clients with a client axis; clients must be sorted by steps, most first."""
        places = list(range(len(self.clients)))
        return [self._batches(places, phase) for phase in range(len(self.schedules[0]))]

    def _batches(self, places: list[int], phase: int, squeeze: bool = False) -> PhaseBatches:
        mine = [self.schedules[k][phase] for k in places]
        data = self.program.algorithm.phases(self.program.task)[phase].data
        pool = self.program.source(data)
        rows = [self.rows[k] if data == "private" else self.public_rows for k in places]
        different, which = _distinct(list(zip(mine, rows, strict=True)))
        lengths = [len(s) for s, _ in different]
        batch = mine[0].positions.shape[1]
        index = np.zeros((max(lengths), len(different), batch), np.int32)  # half as many bytes to copy to a GPU
        weight = np.zeros(index.shape, np.float32)
        for i, (s, r) in enumerate(different):
            index[: len(s), i] = r[s.positions]
            weight[: len(s), i] = s.weight
        key = torch.tensor([s.key for s in mine], device=pool.device)
        on = (torch.from_numpy(index).to(pool.device).long(), torch.from_numpy(weight).to(pool.device))
        if len(different) < len(places):
            place = torch.tensor(which, device=pool.device)
            on = (on[0].index_select(1, place), on[1].index_select(1, place))
        active = np.arange(len(index))[:, None] < np.array(lengths)
        widths = active[:, which].sum(1).tolist()
        padded = (active & (weight.min(2, initial=1) == 0)).any(1).tolist()
        if squeeze:
            return PhaseBatches(on[0][:, 0], on[1][:, 0], key[0], None, padded)
        return PhaseBatches(*on, key, widths, padded)


def _distinct(items: list[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return each combination of objects once, and which of them stands at each place.

    Runs that train together on the same data have batches and rows in common.
    """
    found: dict[tuple[int, ...], int] = {}
    different: list[tuple[Any, ...]] = []
    which: list[int] = []
    for item in items:
        key = tuple(id(part) for part in item)
        if key not in found:
            found[key] = len(different)
            different.append(item)
        which.append(found[key])
    return different, which


class Executor:
    """Runs jobs.

    Attributes:
        name: Name of the executor.
        preparing: Seconds that training has waited so far for compiling and capturing, which do not count as training.
        compiled: Whether the steps of the last jobs were compiled, all of them.
        takes_numbers: Whether the clients of a job may differ in their settings (`Job.numbers`).
        shared: What runs that train together compute once; None: each run trains alone.
        replies_finite: Whether all numbers of the replies that were returned last were seen to be finite.
    """

    name: str = ""
    takes_numbers: bool = False
    shared: SharedWork | None = None
    replies_finite: bool = False
    preparing: float = 0.0
    compiled: bool = False

    def __init_subclass__(cls, **settings: Any) -> None:
        """Name a class that nobody has named."""
        super().__init_subclass__(**settings)
        if "name" not in vars(cls):
            cls.name = cls.__name__

    def run(self, job: Job) -> list[Reply]:
        """Train the clients of a job.

        Args:
            job: The clients of one architecture, with what they receive, hold and do.

        Returns:
            The replies in the order of the job's clients.
        """
        raise NotImplementedError

    def run_all(self, jobs: list[Job]) -> Sequence[Sequence[Reply]]:
        """Train the clients of several jobs; one job after another by default.

        Args:
            jobs: One job per architecture.

        Returns:
            The replies of each job.
        """
        return [self.run(job) for job in jobs]

    def compute_together(self, function: Callable[[list[T]], list[R]], item: T, round: int) -> R:
        """Apply a function of several items to one item, together with those of the runs that train beside this one.

        Args:
            function: Takes a list of items and returns one result for each.
            item: The item of this run.
            round: The round that it belongs to.

        Returns:
            The result for the item.
        """
        return function([item])[0]


def _shown(name: str, form: Schema) -> str:
    """A tensor of a tree, in words."""
    if name not in form:
        return f"no {name!r}"
    shape, dtype = form[name]
    return f"{name!r} of shape {shape}, {dtype}"
