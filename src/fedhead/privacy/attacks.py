"""Attacks on what clients send, and the measures of their success: pure functions of tensors."""

from __future__ import annotations

import math

import numpy as np
import scipy  # scipy.stats is imported lazily
import torch
from numpy.typing import NDArray
from torch import Tensor

RANK_ONE = 1e-6  # share of a scatter outside of its first direction below which it is that of two samples


def features_of_class(count: float, total: Tensor, outer: Tensor | None) -> Tensor | None:
    """Reconstruct the features of a class of one or two samples from its statistics.

    The sum over one sample is its feature. Two samples a, b have the scatter Σzzᵀ − sum·sumᵀ/2 = (a−b)(a−b)ᵀ/2, whose
    only eigenvector is the direction of a−b: they are mean ± √(λ/2)·v.

    Args:
        count: Number of samples, which noise may have changed; it is rounded.
        total: Sum of the features, [d].
        outer: Sum of their outer products, [d, d]; None: not known.

    Returns:
        The features, [1, d] or [2, d]; None for other classes, and for a scatter that two samples can't have.
    """
    samples = round(count)
    if samples == 1:
        return total[None]
    if samples != 2 or outer is None:
        return None
    values, vectors = torch.linalg.eigh(outer - torch.outer(total, total) / 2)
    if values[:-1].abs().sum() > RANK_ONE * values[-1].clamp_min(0) + RANK_ONE * outer.diagonal().sum():
        return None
    step = (values[-1].clamp_min(0) / 2).sqrt() * vectors[:, -1]
    return torch.stack([total / 2 + step, total / 2 - step])


def direction_error(estimates: Tensor, true: Tensor) -> Tensor:
    """Return the relative errors between all pairs of vectors after the best scaling, [n, m]; 0 is exact."""
    norms = [each.norm(dim=1, keepdim=True).clamp_min(1e-300) for each in (estimates, true)]
    cosine = (estimates / norms[0]) @ (true / norms[1]).mT
    error: Tensor = (1 - cosine.clamp(-1, 1).square()).clamp_min(0).sqrt()
    return error


def area_under_curve(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the probability that a member has a higher score than another sample; 0.5 is a guess."""
    ranks = scipy.stats.rankdata(np.concatenate([members, others]))[: len(members)].sum()
    return float((ranks - len(members) * (len(members) + 1) / 2) / (len(members) * len(others)))


def true_positive_rate(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the share of members found with at most 1 % of the other samples."""
    threshold = np.sort(others)[::-1][len(others) // 100]
    return float((members > threshold).mean())


def epsilon_bound(inside: NDArray[np.float64], outside: NDArray[np.float64], delta: float) -> float:
    """Return a lower bound on ε, at 95 % confidence, from the scores of many releases with a canary and without it.

    Any test of an (ε, δ)-private release has TPR ≤ e^ε FPR + δ, and so has its complement (Kairouz et al., 2015). The
    threshold is chosen on the first half of the scores; the rates on the second half are bounded by Clopper and
    Pearson, each with half of the error probability.

    Args:
        inside: Scores of releases with the canary, which should be higher.
        outside: Scores of releases without it.
        delta: δ of the claim.
    """
    half = len(inside) // 2

    def bound(inside: NDArray[np.float64], outside: NDArray[np.float64], threshold: float) -> float:
        trials, level = len(inside), 0.025
        hits, false = int((inside > threshold).sum()), int((outside > threshold).sum())

        def low(k: int) -> float:
            return float(scipy.stats.beta.ppf(level, k, trials - k + 1)) if k else 0.0

        def high(k: int) -> float:
            return float(scipy.stats.beta.ppf(1 - level, k + 1, trials - k)) if k < trials else 1.0

        ratios = [(low(hits) - delta) / high(false), (low(trials - false) - delta) / high(trials - hits)]
        return max(0.0, *(math.log(ratio) for ratio in ratios if ratio > 0))

    candidates = np.quantile(np.concatenate([inside[:half], outside[:half]]), np.linspace(0.02, 0.98, 49))
    best = max(candidates, key=lambda threshold: bound(inside[:half], outside[:half], float(threshold)))
    return bound(inside[half:], outside[half:], float(best))
