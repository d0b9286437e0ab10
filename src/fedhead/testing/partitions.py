"""The check of a partition: that every sample goes to exactly one client, and a seed gives the same split for good."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.errors import BadInput
from fedhead.data.allocation import Rows
from fedhead.data.partition import Partition
from fedhead.testing.failure import Check, CheckFailed, told
from fedhead.testing.purity import global_generators

CASES = ((60, 3, 4), (61, 4, 7), (200, 10, 5), (6, 2, 6))  # samples, classes, clients


def check_partition(partition: Partition | type[Partition]) -> list[Check]:
    """Check that a partition assigns every sample to exactly one client, alike for the same seed.

    Args:
        partition: The partition, or its class if that can be made without arguments.

    Returns:
        The checks that were made.

    Raises:
        CheckFailed: In one line, what is wrong and how to fix it.
    """
    owner = partition.__name__ if isinstance(partition, type) else type(partition).__name__
    try:
        made = partition() if isinstance(partition, type) else partition
    except TypeError as error:
        raise CheckFailed(f"{owner} can't be made without arguments ({error}): check an instance") from error
    if not isinstance(made, Partition):
        raise CheckFailed(f"{owner} is no partition: let it inherit from fh.Partition and define assign")
    if not dataclasses.is_dataclass(made):
        raise CheckFailed(f"{owner} is no dataclass: write @dataclass(frozen=True) above it")
    splits = [(case, *_split(made, owner, *case)) for case in CASES]
    usable = [(case, y, rows) for case, y, rows in splits if rows is not None]
    if not usable:
        raise CheckFailed(f"{owner} refuses all of the small data sets: {_refusal(made)}")
    for case, y, rows in usable:
        _rows(owner, case, rows)
        _seed(made, owner, case, y, rows)
    return [Check("rows"), Check("seed")]


def _labels(samples: int, classes: int) -> NDArray[np.int64]:
    return np.random.RandomState(0).permutation(np.arange(samples) % classes)


def _split(
    partition: Partition, owner: str, samples: int, classes: int, clients: int
) -> tuple[NDArray[np.int64], list[Rows] | None]:
    y = _labels(samples, classes)
    before, generator = y.copy(), global_generators()
    with told(owner, f"assigning {samples} samples to {clients} clients"):
        try:
            assigned = partition.assign(y, classes, clients, np.random.RandomState(0))
        except BadInput:
            return before, None
    if not np.array_equal(before, y):
        raise CheckFailed(f"{owner}.assign changes the labels in place: copy them first")
    if global_generators() != generator:
        raise CheckFailed(f"{owner}.assign draws from numpy's global generator: draw from its argument rng alone")
    return before, [np.asarray(rows) for rows in assigned]


def _refusal(partition: Partition) -> str:
    try:
        partition.assign(_labels(*CASES[0][:2]), *CASES[0][1:], np.random.RandomState(0))
    except BadInput as error:
        return str(error)
    return "no reason"


def _rows(owner: str, case: tuple[int, int, int], rows: list[Rows]) -> None:
    samples, _, clients = case
    if len(rows) != clients:
        raise CheckFailed(
            f"{owner}.assign returns {len(rows)} lists of rows for {clients} clients: one list per client"
        )
    for k, mine in enumerate(rows):
        if mine.ndim != 1 or (len(mine) and not np.issubdtype(mine.dtype, np.integer)):
            raise CheckFailed(f"{owner}.assign gives client {k} {mine.dtype} of shape {mine.shape}: give row numbers")
    assigned = np.concatenate(rows).astype(np.int64)
    if len(assigned) and (assigned.min() < 0 or assigned.max() >= samples):
        raise CheckFailed(f"{owner}.assign gives out row {assigned.max()}, but the rows are 0 … {samples - 1}")
    times = np.bincount(assigned, minlength=samples)
    if lost := int((times == 0).sum()):
        raise CheckFailed(
            f"{owner}.assign loses {lost} of {samples} rows ({clients} clients), row {int(times.argmin())} first: "
            "every row goes to exactly one client"
        )
    if twice := int((times > 1).sum()):
        raise CheckFailed(
            f"{owner}.assign gives {twice} of {samples} rows to several clients, row {int(times.argmax())} first: "
            "every row goes to exactly one client"
        )


def _seed(partition: Partition, owner: str, case: tuple[int, int, int], y: NDArray[Any], rows: list[Rows]) -> None:
    again = partition.assign(y, *case[1:], np.random.RandomState(0))
    if any(not np.array_equal(a, b) for a, b in zip(rows, again, strict=True)):
        raise CheckFailed(f"{owner}.assign gives another split for the same rng: draw from its argument rng alone")
    split = partition.split(y, *case[1:], seed=0)
    if [rows.tolist() for rows in split] != [rows.tolist() for rows in partition.split(y, *case[1:], seed=0)]:
        raise CheckFailed(f"{owner}.split gives another split for the same seed: override assign alone")
