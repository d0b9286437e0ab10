"""Sums over the rows of a table, from which missing values are filled and features are normalized.

A sum is exact to about 32 digits: it is stored as a fraction, and sent as a float and its rounding error. So the sums
of all clients equal those of the pooled table in any order. The variance of a feature with a large mean, such as a
year, keeps its digits although it is computed in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
CHUNK = 1 << 14  # rows that are converted to float64 at once
BINS = 256  # of a histogram
QUANTILES = (0.05, 0.95)  # become -1 and 1 with normalize=quantiles


@dataclass(frozen=True)
class FeatureSums:
    """Sums of one feature over the rows in which it has a value.

    Args:
        count: Number of such rows.
        total: Sum of the values.
        squares: Sum of their squares.
    """

    count: int = 0
    total: Fraction = Fraction(0)
    squares: Fraction = Fraction(0)

    @property
    def mean(self) -> float:
        """Mean of the values; 0 without values."""
        return float(self.total / max(self.count, 1))

    @property
    def deviation(self) -> float:
        """Standard deviation of the values; 1 for a constant feature, which is then only shifted."""
        count = max(self.count, 1)
        variance = self.squares / count - (self.total / count) ** 2
        deviation = max(float(variance), 0.0) ** 0.5
        return 1.0 if deviation < 1e-8 * (1 + abs(self.mean)) else deviation

    def __add__(self, other: FeatureSums) -> FeatureSums:
        return FeatureSums(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def with_rows(self, rows: int, value: float) -> FeatureSums:
        """Return the sums after adding rows that all have one value."""
        exact = Fraction(value)
        return self + FeatureSums(rows, rows * exact, rows * exact**2)


def feature_sums(x: Tensor) -> list[FeatureSums]:
    """Return the sums of each feature of a table, [N, F], in which NaN marks a missing value."""
    sums = [FeatureSums()] * x.shape[1]
    for part in torch.split(x, CHUNK):
        values = part.double().numpy()
        there = ~np.isnan(values)
        values = np.where(there, values, 0.0)
        totals, squares = _exact(values), _exact(values * values)  # squares of float32 are exact in float64
        parts = zip(there.sum(0).tolist(), totals, squares, strict=True)
        sums = [known + FeatureSums(*item) for known, item in zip(sums, parts, strict=True)]
    return sums


def _exact(values: Array) -> list[Fraction]:
    """Sum over the rows by pairs, with the rounding error of each addition (Knuth's TwoSum)."""
    high, low = values, np.zeros_like(values)
    while len(high) > 1:
        if len(high) % 2:
            high, low = (np.concatenate([part, np.zeros((1, part.shape[1]))]) for part in (high, low))
        a, b = high[::2], high[1::2]
        high = a + b
        rounded = high - a
        low = low[::2] + low[1::2] + ((a - (high - rounded)) + (b - rounded))
    return [Fraction(h) + Fraction(e) for h, e in zip(high.sum(0).tolist(), low.sum(0).tolist(), strict=True)]


def histogram(values: Tensor, limits: tuple[float, float]) -> list[int]:
    """Count the values of a feature in equal parts of a range; NaN is not counted."""
    there = values[~values.isnan()].double().numpy().clip(*limits)  # float32 may round beyond a limit
    counts: list[int] = np.histogram(there, BINS, limits)[0].tolist()
    return counts


def quantile_scale(counts: Sequence[int], limits: tuple[float, float]) -> tuple[float, float]:
    """Return the middle of a feature's lower and upper quantile, and half of their distance.

    Args:
        counts: Histogram of the values.
        limits: Range of the histogram; the quantiles are exact to 1 / `BINS` of it.
    """
    edges, cumulated = np.linspace(*limits, BINS + 1), np.concatenate([[0], np.cumsum(counts)])
    low, high = np.interp([q * cumulated[-1] for q in QUANTILES], cumulated, edges).tolist()
    return (low + high) / 2, (high - low) / 2 if high > low else 1.0


def to_numbers(sums: FeatureSums) -> tuple[int, float, float, float, float]:
    """Return the count and the two parts of each sum, for JSON."""
    total, squares = float(sums.total), float(sums.squares)
    return sums.count, total, float(sums.total - Fraction(total)), squares, float(sums.squares - Fraction(squares))


def from_numbers(numbers: Sequence[float]) -> FeatureSums:
    """Return the sums from the result of `to_numbers`."""
    count, *parts = numbers
    high, low, squares_high, squares_low = map(Fraction, parts)
    return FeatureSums(int(count), high + low, squares_high + squares_low)
