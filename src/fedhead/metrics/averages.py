"""Means and deviations over runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def mean_and_deviation(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Return the mean and the sample standard deviation (n − 1), ignoring None.

    Args:
        values: Value of each run; None if a run has no value.

    Returns:
        Mean (None without values) and standard deviation (None with fewer than two values).

    >>> mean_and_deviation([1.0, None, 3.0]), mean_and_deviation([2.0]), mean_and_deviation([])
    ((2.0, 1.4142135623730951), (2.0, None), (None, None))
    """
    numbers = [value for value in values if value is not None]
    mean = statistics.fmean(numbers) if numbers else None
    return mean, statistics.stdev(numbers) if len(numbers) > 1 else None
