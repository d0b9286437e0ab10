"""Poisson sampling: every client takes part independently of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedhead.core.training import random
from fedhead.samplers.base import Sampler, sampler


@sampler("poisson")
@dataclass(frozen=True)
class PoissonSampler(Sampler):
    """Independent sampling with equal probabilities, which differential privacy benefits from most (`client_dp`).

    The size of a cohort varies; `participation` is its expectation.
    """

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return each client with probability count / number of clients.

        >>> PoissonSampler().select(1, 2, {0: 9, 4: 1, 7: 5, 8: 5}, seed=0)
        [0, 4, 7]
        """
        clients = sorted(sizes)
        draws = random.uniforms(random.key(seed, "cohort", round), len(clients))
        return [k for k, draw in zip(clients, draws, strict=True) if draw * len(clients) < count]
