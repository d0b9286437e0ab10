"""Draws that partitions are made of: whole numbers from shares, rows from counts, Dirichlet shares that stay finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core import random
from fedhead.core.errors import BadInput

Rows = NDArray[np.int64]
_SMALLEST = 1e-100  # a smaller alpha deals out the same: one client takes the whole class


def apportion(share: NDArray[np.float64], total: int) -> Rows:
    """Whole numbers that add up to `total`, as near to `share * total` as they go (largest remainders).

    >>> apportion(np.array([0.5, 0.3, 0.2]), 4)
    array([2, 1, 1])
    """
    exact = share * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")  # largest remainders first
    counts[order[: total - counts.sum()]] += 1
    return counts


def hand_out(y: NDArray[Any], counts: Rows, rng: np.random.RandomState) -> list[Rows]:
    """Random rows of every class for every client, as many as counts [clients, classes] say."""
    parts = []
    for c in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(y == c))
        parts.append(np.split(rows, np.cumsum(counts[:-1, c])))
    return [np.concatenate(own) for own in zip(*parts, strict=True)]


def log_gamma(rng: np.random.RandomState, alpha: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Logarithms of Gamma(α) draws; their softmax is a Dirichlet draw that stays finite for any α.

    Gamma(α) itself underflows for small α, and 0/0 is the NaN that haunts such partitions; but it is Gamma(α+1) times
    U^(1/α), and that has a logarithm.
    """
    alpha = max(alpha, _SMALLEST)
    boost: NDArray[np.float64] = np.log(rng.standard_gamma(alpha + 1.0, shape))
    return boost + np.log(1.0 - rng.random_sample(shape)) / alpha


def softmax(log: NDArray[np.float64]) -> NDArray[np.float64]:
    share = np.exp(log - log.max(axis=-1, keepdims=True))
    return np.asarray(share / share.sum(axis=-1, keepdims=True))


def stratified(y: NDArray[np.int64], n: int, seed: int) -> Rows:
    """n rows, in rising order, in which each class has its share; the same for the same seed."""
    if not 1 <= n <= len(y):
        raise BadInput(f"samples: {n} must lie between 1 and the {len(y)} that there are")
    order = random.permutation(random.key(seed, "subset"), len(y))
    quota = apportion(np.bincount(y) / len(y), n)
    return np.sort(np.concatenate([order[y[order] == c][:q] for c, q in enumerate(quota)])).astype(np.int64)
