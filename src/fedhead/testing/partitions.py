"""Contract checks of partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.component_check import name_of
from fedhead.core.system.errors import BadInput
from fedhead.core.training import global_generators
from fedhead.data.partitions.partition import Partition, checked_rows
from fedhead.data.partitions.partition_registry import PARTITIONS, FromFunction, PartitionLike, parse
from fedhead.testing.checks import Check, as_check_failure, require, run_checks

Case = tuple[int, int, int]  # samples, classes, clients
CASES: tuple[Case, ...] = ((60, 3, 4), (61, 4, 7), (200, 10, 5), (6, 2, 6))


def check_partition(partition: PartitionLike, *, skip: Sequence[str] = ()) -> list[Check]:
    """Check that a partition assigns every sample to exactly one client, reproducibly for a seed.

    Args:
        partition: Partition; a class without required arguments; a function `(y, clients, rng, parameters
            with defaults)` that returns one array of indices per client; or its text in recipes.
        skip: Names of checks to leave out: "rows", "seed".

    Returns:
        The checks, with the reason for each that was skipped.

    Raises:
        CheckFailed: If a check fails, with the problem and the fix in one line.
    """
    owner = partition if isinstance(partition, str) else name_of(getattr(partition, "function", partition))
    with as_check_failure(owner, "while it was made"):
        rule = parse(partition)
        if isinstance(partition, Partition):
            PARTITIONS.resolve(type(partition))  # its class must be valid in recipes
    return run_checks(owner, rule, PARTITION_CHECKS, skip)


def _labels(case: Case) -> NDArray[np.int64]:
    return np.random.RandomState(0).permutation(np.arange(case[0]) % case[1])


def _splits(rule: Partition) -> dict[Case, Any]:
    """Return the assigned indices for all small data sets that the partition accepts."""
    splits, refusal = dict[Case, Any](), BadInput("no reason")
    for case in CASES:
        y, rng = _labels(case), np.random.RandomState(0)
        try:
            if isinstance(rule, FromFunction):  # errors of the function, which `assign` treats as refusals
                splits[case] = list(rule.function(y, case[2], rng, **rule.parameters))
            else:
                splits[case] = rule.assign(y, *case[1:], rng)
        except BadInput as error:
            refusal = error
    require(splits, f"{rule} refuses all of the small data sets: {refusal}")
    return splits


def check_rows(rule: Partition) -> None:
    """Check that every sample goes to exactly one client."""
    for (samples, _, clients), rows in _splits(rule).items():
        checked_rows(rows, samples, clients, rule)


def check_seed(rule: Partition) -> None:
    """Check that a seed gives the same split each time."""
    for case in _splits(rule):
        generators = global_generators.states()
        first, second = ([r.tolist() for r in rule.split(_labels(case), *case[1:], seed=0)] for _ in range(2))
        drawn = global_generators.states() != generators
        require(not drawn, f"{rule} draws from numpy's global generator: draw from its argument rng alone")
        require(first == second, f"{rule} gives another split for the same seed: draw from its argument rng alone")


PARTITION_CHECKS = (check_rows, check_seed)
