"""Statistics of comparisons: paired differences with intervals and tests, and ranks over several data sets.

All functions take plain numbers. The caller pairs the values: in fedhead, runs of the same seed on the same split. The
tests over several data sets are those of Demšar, "Statistical comparisons of classifiers over multiple data sets",
JMLR 7, 2006.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # scipy.stats is imported lazily
from numpy.typing import NDArray

_SAME = 1e-12  # relative tolerance of equal differences


@dataclass(frozen=True)
class Paired:
    """Mean of paired differences, with interval and tests.

    Args:
        count: Number of pairs.
        mean: Mean of the differences.
        deviation: Their standard deviation (n − 1); None for one pair.
        interval: Confidence interval of the mean by Student's t. None for one pair, and if all differences are equal
            but not zero, since a deviation of 0 is not informative.
        p_t: p-value of the paired t-test, two-sided; None in the same cases.
        p_wilcoxon: p-value of Wilcoxon's signed-rank test, two-sided; None for one pair. It is at least 0.05 for fewer
            than six pairs.
    """

    count: int
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    p_t: float | None
    p_wilcoxon: float | None

    @property
    def why_no_interval(self) -> str:
        """Reason of a missing interval, for tables."""
        return "one pair: none" if self.count == 1 else "all equal: none"


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of a mean by Student's t; None for fewer than two values.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    if len(values) < 2:
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(scipy.stats.t.ppf((1 + level) / 2, len(values) - 1)) * error
    return mean - half, mean + half


def paired(differences: Sequence[float], level: float = 0.95) -> Paired:
    """Return the mean of paired differences with its interval and the p-values of two paired tests.

    Args:
        differences: One difference per pair, at least one.
        level: Level of the interval.
    """
    values = np.asarray(differences, dtype=np.float64)
    mean = float(values.mean())
    if len(values) < 2:
        return Paired(len(values), mean, None, None, None, None)
    deviation = float(values.std(ddof=1))
    if not values.any():
        return Paired(len(values), 0.0, 0.0, (0.0, 0.0), 1.0, 1.0)
    constant = deviation <= _SAME * abs(mean)
    between = None if constant else interval(differences, level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about ties and small samples, which are common here
        p_t = None if constant else float(scipy.stats.ttest_1samp(values, 0.0).pvalue)
        p_wilcoxon = float(scipy.stats.wilcoxon(values).pvalue)
    return Paired(len(values), mean, deviation, between, p_t, p_wilcoxon)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for multiple tests by Holm's step-down method; None stays None and is not counted.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    out: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for before, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - before) * p))
        out[i] = largest
    return out


@dataclass(frozen=True)
class Ranking:
    """Methods ranked on several data sets; rank 1 is the best, equal values share the mean of their ranks.

    Args:
        names: The methods.
        ranks: Rank on each data set, [data sets, methods].
        mean_ranks: Mean over the data sets, one entry per method.
        p_friedman: p-value of Friedman's test; None for fewer than three methods.
        critical_difference: Mean ranks that differ by at least this differ significantly (Nemenyi).
    """

    names: tuple[str, ...]
    ranks: NDArray[np.float64]
    mean_ranks: tuple[float, ...]
    p_friedman: float | None
    critical_difference: float

    def groups(self) -> list[tuple[int, ...]]:
        """Return the maximal groups of methods without significant differences, as indices, best first."""
        order = sorted(range(len(self.names)), key=lambda i: self.mean_ranks[i])
        out: list[tuple[int, ...]] = []
        end = 0  # end of the previous group
        for start, first in enumerate(order):
            close = [i for i in order[start:] if self.mean_ranks[i] - self.mean_ranks[first] < self.critical_difference]
            if len(close) > 1 and start + len(close) > end:
                out.append(tuple(close))
                end = start + len(close)
        return out


def rank(
    names: Sequence[str],
    scores: Sequence[Sequence[float]],
    better: Literal["max", "min"] = "max",
) -> Ranking:
    """Rank methods on each data set, and test whether their mean ranks differ (Demšar, 2006, Section 3.2.2).

    Args:
        names: The methods, at least two.
        scores: One line per data set with one score per method.
        better: Direction of the scores.
    """
    table = np.asarray(scores, dtype=np.float64)
    ranks = scipy.stats.rankdata(table if better == "min" else -table, axis=1)
    sets, methods = table.shape
    p_friedman = None if methods < 3 or sets < 2 else _friedman(ranks)
    mean_ranks = tuple(ranks.mean(axis=0).tolist())
    return Ranking(tuple(names), ranks, mean_ranks, p_friedman, critical_difference(methods, sets))


def _friedman(ranks: NDArray[np.float64]) -> float:
    if (ranks == ranks[:, :1]).all():  # all methods are equal on every data set
        return 1.0
    return float(scipy.stats.friedmanchisquare(*ranks.T).pvalue)


def critical_difference(methods: int, data_sets: int) -> float:
    """Return the difference of mean ranks that is significant (p = 0.05), by Nemenyi's test.

    CD = q √(k(k+1) / 6N), where q is the Studentized range's quantile over √2 (Demšar, 2006, Table 5).

    >>> round(critical_difference(methods=4, data_sets=14), 2)
    1.25
    """
    q = float(scipy.stats.studentized_range.ppf(0.95, methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * data_sets))
