"""Uniform sampling, as in FedAvg (McMahan et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedhead.core.training import random
from fedhead.samplers.base import Sampler, sampler


@sampler("uniform")
@dataclass(frozen=True)
class UniformSampler(Sampler):
    """Uniform sampling without replacement (McMahan et al., 2017, Algorithm 1)."""

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return the first clients of a random permutation.

        >>> UniformSampler().select(1, 3, {0: 9, 4: 1, 7: 5}, seed=0)
        [0, 4, 7]
        """
        clients = sorted(sizes)
        order = random.permutation(random.key(seed, "cohort", round), len(clients))
        return sorted(clients[i] for i in order[:count])
