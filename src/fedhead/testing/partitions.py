"""Checks of partitions: every sample goes to exactly one client, and a seed decides the split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.component_check import name_of
from fedhead.core.system.errors import BadInput
from fedhead.core.training import global_generators
from fedhead.data.partitions.allocation import Rows
from fedhead.data.partitions.partition import Partition
from fedhead.data.partitions.partition_registry import PARTITIONS, FromFunction, PartitionLike, parse
from fedhead.testing.checks import Check, as_check_failure, require, run_checks

Case = tuple[int, int, int]  # samples, classes, clients
CASES: tuple[Case, ...] = ((60, 3, 4), (61, 4, 7), (200, 10, 5), (6, 2, 6))


def check_partition(partition: PartitionLike, *, skip: Sequence[str] = ()) -> list[Check]:
    """Check that a partition assigns every sample to exactly one client, alike for the same seed.

    Args:
        partition: The partition; a class that can be made without arguments; a function `(y, clients, rng, parameters
            with defaults)` that returns one array of rows per client; or a text as recipes write it.
        skip: Names of checks to leave out: "rows", "seed".

    Returns:
        The checks, with the reason for each that was skipped.

    Raises:
        CheckFailed: In one line, what is wrong and how to fix it.
    """
    owner = _owner(partition)
    with as_check_failure(owner, "while it was made"):
        rule = parse(partition)
        if isinstance(partition, Partition):
            PARTITIONS.resolve(type(partition))  # whose class a recipe may name
    name = owner if isinstance(rule, FromFunction) else f"{owner}.assign"
    trial = PartitionTrial(rule, name)
    return run_checks(owner, trial, PARTITION_CHECKS, skip)


def _owner(partition: PartitionLike) -> str:
    if isinstance(partition, FromFunction):
        return name_of(partition.function)
    if isinstance(partition, str):
        return partition
    return type(partition).__name__ if isinstance(partition, Partition) else name_of(partition)


@dataclass(frozen=True)
class PartitionTrial:
    """A partition and the splits of small data sets, by (samples, classes, clients)."""

    rule: Partition
    name: str

    def labels(self, case: Case) -> NDArray[np.int64]:
        """Return the labels of a small data set."""
        return np.random.RandomState(0).permutation(np.arange(case[0]) % case[1])

    def assign(self, case: Case, y: NDArray[np.int64]) -> list[Any]:
        """Split a small data set."""
        rng = np.random.RandomState(0)
        if isinstance(self.rule, FromFunction):  # its own errors, which `assign` takes for refusals
            return list(self.rule.function(y, case[2], rng, **self.rule.parameters))
        return self.rule.assign(y, *case[1:], rng)

    @cached_property
    def splits(self) -> dict[Case, list[Rows]]:
        """Indices of each client, for the data sets that the partition does not refuse."""
        splits, refusal = dict[Case, list[Rows]](), BadInput("no reason")
        for case in CASES:
            y, generators = self.labels(case), global_generators.states()
            try:
                splits[case] = [np.asarray(rows) for rows in self.assign(case, y)]
            except BadInput as error:
                refusal = error
                continue
            require(np.array_equal(y, self.labels(case)), f"{self.name} changes the labels in place: copy them first")
            require(
                global_generators.states() == generators,
                f"{self.name} draws from numpy's global generator: draw from its argument rng alone",
            )
        require(splits, f"{self.name} refuses all of the small data sets: {refusal}")
        return splits


def check_rows(trial: PartitionTrial) -> None:
    """Check that every sample goes to exactly one client."""
    name, once = trial.name, "every row goes to exactly one client"
    for (samples, _, clients), rows in trial.splits.items():
        require(
            len(rows) == clients, f"{name} returns {len(rows)} lists of rows for {clients} clients: one list per client"
        )
        for k, mine in enumerate(rows):
            require(
                mine.ndim == 1 and (not len(mine) or np.issubdtype(mine.dtype, np.integer)),
                f"{name} gives client {k} {mine.dtype} of shape {mine.shape}: give row numbers",
            )
        assigned = np.concatenate(rows).astype(np.int64)
        odd = assigned[(assigned < 0) | (assigned >= samples)]
        require(not len(odd), f"{name} gives out row {odd[:1]}, but the rows are 0 … {samples - 1}")
        times = np.bincount(assigned, minlength=samples)
        lost, twice = int((times == 0).sum()), int((times > 1).sum())
        require(
            not lost, f"{name} loses {lost} of {samples} rows ({clients} clients), row {times.argmin()} first: {once}"
        )
        require(
            not twice, f"{name} gives {twice} of {samples} rows to several clients, row {times.argmax()} first: {once}"
        )


def check_seed(trial: PartitionTrial) -> None:
    """Check that a seed gives the same split each time."""
    for case, rows in trial.splits.items():
        y = trial.labels(case)
        require(
            all(np.array_equal(a, b) for a, b in zip(rows, trial.assign(case, y), strict=True)),
            f"{trial.name} gives another split for the same rng: draw from its argument rng alone",
        )
        first, second = ([rows.tolist() for rows in trial.rule.split(y, *case[1:], seed=0)] for _ in range(2))
        require(
            first == second, f"{trial.name}: its split gives another result for the same seed: override assign alone"
        )


PARTITION_CHECKS = (check_rows, check_seed)
