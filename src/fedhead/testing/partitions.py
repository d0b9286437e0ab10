"""The check of a partition: that every sample goes to exactly one client, and a seed gives the same split for good."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.component_check import name_of
from fedhead.core.system.errors import BadInput
from fedhead.core.training import global_generators
from fedhead.data.partitions.allocation import Rows
from fedhead.data.partitions.partition import Partition
from fedhead.data.partitions.partition_registry import PARTITIONS, FromFunction, PartitionLike, parse
from fedhead.testing.failure import Check, CheckFailed, as_check_failure

CASES = ((60, 3, 4), (61, 4, 7), (200, 10, 5), (6, 2, 6))  # samples, classes, clients


def check_partition(partition: PartitionLike) -> list[Check]:
    """Check that a partition assigns every sample to exactly one client, alike for the same seed.

    Args:
        partition: The partition; a class that can be made without arguments; a function `(y, clients, rng, parameters
            with defaults)` that returns one array of rows per client; or a text as recipes write it.

    Returns:
        The checks that were made.

    Raises:
        CheckFailed: In one line, what is wrong and how to fix it.
    """
    owner = _owner(partition)
    with as_check_failure(owner, "while it was made"):
        made = parse(partition)
        if isinstance(partition, Partition):
            PARTITIONS.resolve(type(partition))  # whose class a recipe may name
    rule = owner if isinstance(made, FromFunction) else f"{owner}.assign"
    splits = [(case, *_split(made, rule, *case)) for case in CASES]
    usable = [(case, y, rows) for case, y, rows in splits if rows is not None]
    if not usable:
        raise CheckFailed(f"{owner} refuses all of the small data sets: {_refusal(made)}")
    for case, y, rows in usable:
        _rows(rule, case, rows)
        _seed(made, rule, case, y, rows)
    return [Check("rows"), Check("seed")]


def _owner(partition: PartitionLike) -> str:
    if isinstance(partition, FromFunction):
        return name_of(partition.function)
    if isinstance(partition, str):
        return partition
    return type(partition).__name__ if isinstance(partition, Partition) else name_of(partition)


def _labels(samples: int, classes: int) -> NDArray[np.int64]:
    return np.random.RandomState(0).permutation(np.arange(samples) % classes)


def _split(
    partition: Partition, rule: str, samples: int, classes: int, clients: int
) -> tuple[NDArray[np.int64], list[Rows] | None]:
    y = _labels(samples, classes)
    before, generator = y.copy(), global_generators.states()
    with as_check_failure(rule.removesuffix(".assign"), f"assigning {samples} samples to {clients} clients"):
        try:
            assigned = _assign(partition, y, classes, clients)
        except BadInput:
            return before, None
    if not np.array_equal(before, y):
        raise CheckFailed(f"{rule} changes the labels in place: copy them first")
    if global_generators.states() != generator:
        raise CheckFailed(f"{rule} draws from numpy's global generator: draw from its argument rng alone")
    return before, [np.asarray(rows) for rows in assigned]


def _assign(partition: Partition, y: NDArray[Any], classes: int, clients: int) -> list[Any]:
    rng = np.random.RandomState(0)
    if isinstance(partition, FromFunction):  # its own errors, which `assign` takes for refusals
        return list(partition.function(y, clients, rng, **partition.parameters))
    return partition.assign(y, classes, clients, rng)


def _refusal(partition: Partition) -> str:
    try:
        _assign(partition, _labels(*CASES[0][:2]), *CASES[0][1:])
    except BadInput as error:
        return str(error)
    return "no reason"


def _rows(rule: str, case: tuple[int, int, int], rows: list[Rows]) -> None:
    samples, _, clients = case
    if len(rows) != clients:
        raise CheckFailed(f"{rule} returns {len(rows)} lists of rows for {clients} clients: one list per client")
    for k, mine in enumerate(rows):
        if mine.ndim != 1 or (len(mine) and not np.issubdtype(mine.dtype, np.integer)):
            raise CheckFailed(f"{rule} gives client {k} {mine.dtype} of shape {mine.shape}: give row numbers")
    assigned = np.concatenate(rows).astype(np.int64)
    if len(assigned) and (assigned.min() < 0 or assigned.max() >= samples):
        raise CheckFailed(f"{rule} gives out row {assigned.max()}, but the rows are 0 … {samples - 1}")
    times = np.bincount(assigned, minlength=samples)
    if lost := int((times == 0).sum()):
        raise CheckFailed(
            f"{rule} loses {lost} of {samples} rows ({clients} clients), row {int(times.argmin())} first: every "
            f"row goes to exactly one client"
        )
    if twice := int((times > 1).sum()):
        raise CheckFailed(
            f"{rule} gives {twice} of {samples} rows to several clients, row {int(times.argmax())} first: every "
            f"row goes to exactly one client"
        )


def _seed(partition: Partition, rule: str, case: tuple[int, int, int], y: NDArray[Any], rows: list[Rows]) -> None:
    again = _assign(partition, y, *case[1:])
    if any(not np.array_equal(a, b) for a, b in zip(rows, again, strict=True)):
        raise CheckFailed(f"{rule} gives another split for the same rng: draw from its argument rng alone")
    split = partition.split(y, *case[1:], seed=0)
    if [rows.tolist() for rows in split] != [rows.tolist() for rows in partition.split(y, *case[1:], seed=0)]:
        raise CheckFailed(f"{rule}: its split gives another result for the same seed: override assign alone")
