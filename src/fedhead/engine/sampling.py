"""Client sampling: which clients take part in a round."""

from __future__ import annotations

import math

from fedhead.algorithm.task import Task
from fedhead.core import random


def sample_cohort(seed: int, round: int, eligible: list[int], clients: int, participation: float) -> list[int]:
    """The clients that take part in a round: a share of all, drawn among those that hold data.

    >>> sample_cohort(0, 1, list(range(10)), 10, 1.0) == list(range(10))
    True
    """
    size = min(len(eligible), cohort_size(clients, participation))
    order = random.permutation(random.key(seed, "cohort", round), len(eligible))
    return sorted(eligible[i] for i in order[:size])


def cohort_size(clients: int, participation: float) -> int:
    """Return how many clients take part in a round, if so many hold data."""
    return max(1, round_half_up(participation * clients))


def cohort_of(task: Task, round: int, eligible: list[int]) -> list[int]:
    """Return the clients of a round of a task, drawn among those that can take part."""
    return sample_cohort(task.seed, round, eligible, task.clients, task.participation)


def round_half_up(value: float) -> int:
    """Round to the nearest integer, halves upwards (Python rounds them to even)."""
    return math.floor(value + 0.5)
