"""Building blocks of partitions: counts from shares, indices from counts, finite Dirichlet shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import require
from fedhead.core.training import random

Indices = NDArray[np.int64]
_SMALLEST = 1e-100  # a smaller alpha gives the same result: one client gets the whole class


def apportion(share: NDArray[np.float64], total: int) -> Indices:
    """Round shares to whole numbers that add up to a total (largest remainder method).

    Args:
        share: Shares that sum to 1, [n].
        total: Sum of the result.

    Returns:
        Counts, [n].

    >>> apportion(np.array([0.5, 0.3, 0.2]), 4)
    array([2, 1, 1])
    """
    exact = share * total
    counts = np.floor(exact).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")  # largest remainders first
    counts[order[: total - counts.sum()]] += 1
    return counts


def assign_samples(y: NDArray[Any], counts: Indices, rng: np.random.RandomState) -> list[Indices]:
    """Assign random samples of each class to the clients, by their counts.

    Args:
        y: Labels, [N].
        counts: Samples per client and class, [clients, classes].
        rng: Random generator.

    Returns:
        The indices of each client.
    """
    parts = []
    for c in range(counts.shape[1]):
        indices = rng.permutation(np.flatnonzero(y == c))
        parts.append(np.split(indices, np.cumsum(counts[:-1, c])))
    return [np.concatenate(client) for client in zip(*parts, strict=True)]


def log_gamma(rng: np.random.RandomState, alpha: float, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Draw logarithms of Gamma(α) variables; their softmax is a Dirichlet sample that stays finite for any α.

    Gamma(α) itself underflows for small α, and the shares become 0/0. But Gamma(α) = Gamma(α+1) · U^(1/α) in
    distribution, and its logarithm does not underflow.
    """
    alpha = max(alpha, _SMALLEST)
    boost: NDArray[np.float64] = np.log(rng.standard_gamma(alpha + 1.0, shape))
    return boost + np.log(1.0 - rng.random_sample(shape)) / alpha


def softmax(log: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the softmax along the last axis."""
    share = np.exp(log - log.max(axis=-1, keepdims=True))
    return np.asarray(share / share.sum(axis=-1, keepdims=True))


def stratified(y: NDArray[np.int64], n: int, seed: int) -> Indices:
    """Choose n indices, stratified by class.

    Args:
        y: Labels, [N].
        n: Number of indices.
        seed: Seed of the choice.

    Returns:
        Sorted indices, [n].

    Raises:
        BadInput: If n is not in 1 … N.
    """
    require(1 <= n <= len(y), f"samples: {n} must be between 1 and {len(y)}, the size of the data set")
    order = random.permutation(random.key(seed, "subset"), len(y))
    quota = apportion(np.bincount(y) / len(y), n)
    return np.sort(np.concatenate([order[y[order] == c][:q] for c, q in enumerate(quota)])).astype(np.int64)


def stratified_share(y: NDArray[np.int64], share: float, seed: int) -> tuple[Indices, Indices]:
    """Split indices in two, stratified by class.

    Args:
        y: Labels, [N].
        share: Share of the second part, between 0 and 1.
        seed: Seed of the choice.

    Returns:
        The sorted indices of both parts.

    Raises:
        BadInput: If one part would be empty.
    """
    size = round(share * len(y))
    require(0 < size < len(y), f"test: a share of {share} of {len(y)} samples leaves one part empty; give test=(x, y)")
    chosen = stratified(y, size, seed)
    return np.setdiff1d(np.arange(len(y)), chosen), chosen
