"""Weighted sampling, with probabilities proportional to training samples."""

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
    """Sampling without replacement, with probabilities proportional to the clients' samples.

    With n_k samples at client k and m clients per round, client k takes part with probability π_k = m n_k / Σ n,
    exactly (systematic sampling in random order, Madow, 1949). A client whose π_k would exceed 1 is in every round; the
    others share the remaining places.

    The server weights a reply by n_k / π_k instead of n_k. This is the same number for all clients with π_k < 1, so
    these have equal weights: weighted sampling with an unweighted mean. The weights of every round sum to Σ n. The mean
    is an unbiased estimate of the sample-weighted mean over all clients (Horvitz and Thompson, 1952). Weighting by n_k
    as well would count samples twice.
    """

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return clients with π_k = 1, and those hit by points u, u + 1, … on a line of segments of length π_k."""
        key, probability = random.key(seed, "cohort", round), self.inclusion(count, sizes)
        certain = [k for k in sizes if probability[k] == 1]
        others = [k for k in sorted(sizes) if probability[k] < 1]
        if not others:
            return sorted(certain)
        others = [others[i] for i in random.permutation(key, len(others))]
        ends = np.cumsum([probability[k] for k in others])
        points = np.arange(count - len(certain)) + random.uniforms(random.key(key, "start"), 1)
        hits = np.searchsorted(ends / ends[-1] * len(points), points, side="right")
        return sorted([*certain, *(others[hit] for hit in hits)])

    def inclusion(self, count: int, sizes: Mapping[int, int]) -> Mapping[int, float]:
        """Return π_k; clients that would exceed 1 get probability 1, and the others are recomputed.

        >>> WeightedSampler().inclusion(2, {0: 80, 1: 10, 2: 10})
        {0: 1.0, 1: 0.5, 2: 0.5}
        """
        certain: set[int] = set()
        while True:
            places = count - len(certain)
            total = math.fsum(size for k, size in sizes.items() if k not in certain)
            exceeding = {k for k, size in sizes.items() if k not in certain and places * size >= total}
            if not exceeding:
                return {k: 1.0 if k in certain else places * size / total for k, size in sizes.items()}
            certain |= exceeding
