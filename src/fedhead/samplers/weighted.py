"""Weighted sampling: a client's probability is proportional to its training samples, without replacement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedhead.core.training import random
from fedhead.samplers.base import Sampler, sampler


@sampler("weighted")
@dataclass(frozen=True)
class WeightedSampler(Sampler):
    """Draw clients with probabilities proportional to their samples, without replacement.

    With n_k samples at client k and m clients per round, client k takes part with probability π_k = m n_k / Σ n,
    exactly (systematic sampling in random order, Madow, 1949). A client for which this exceeds 1 is in every round, and
    the others share the places that are left.

    The server weights a reply by n_k / π_k in place of n_k. For clients with π_k < 1 this is the same number, so that
    they count alike: a weighted draw with an unweighted mean. The weights of every round add up to Σ n, and the mean is
    an unbiased estimate of the mean over all clients weighted by their samples (Horvitz and Thompson, 1952). Weighting
    by n_k as well would count samples twice.
    """

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return those with π_k = 1, and one at each point u, u + 1, … of a line where others have length π_k."""
        key, share = random.key(seed, "cohort", round), self.inclusion(count, sizes)
        certain = [k for k in sizes if share[k] == 1]
        others = [k for k in sorted(sizes) if share[k] < 1]
        if not others:
            return sorted(certain)
        others = [others[i] for i in random.permutation(key, len(others))]
        ends = np.cumsum([share[k] for k in others])
        points = np.arange(count - len(certain)) + random.uniforms(random.key(key, "start"), 1)
        places = np.searchsorted(ends / ends[-1] * len(points), points, side="right")
        return sorted([*certain, *(others[place] for place in places)])

    def inclusion(self, count: int, sizes: Mapping[int, int]) -> Mapping[int, float]:
        """Return π_k; clients that would exceed 1 are taken for certain, until no more do.

        >>> WeightedSampler().inclusion(2, {0: 80, 1: 10, 2: 10})
        {0: 1.0, 1: 0.5, 2: 0.5}
        """
        certain: set[int] = set()
        while True:
            places = count - len(certain)
            total = math.fsum(size for k, size in sizes.items() if k not in certain)
            more = {k for k, size in sizes.items() if k not in certain and places * size >= total}
            if not more:
                return {k: 1.0 if k in certain else places * size / total for k, size in sizes.items()}
            certain |= more
