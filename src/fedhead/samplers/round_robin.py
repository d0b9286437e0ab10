"""Round robin: the clients take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedhead.samplers.base import Sampler, sampler


@sampler("round_robin")
@dataclass(frozen=True)
class RoundRobinSampler(Sampler):
    """Deterministic sampling: clients take turns in the order of their numbers."""

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return the clients that follow the previous cohort, starting over after the last client.

        >>> [RoundRobinSampler().select(number, 2, {0: 9, 4: 1, 7: 5}, seed=0) for number in (1, 2, 3)]
        [[0, 4], [0, 7], [4, 7]]
        """
        clients = sorted(sizes)
        first = (round - 1) * count
        return sorted(clients[(first + offset) % len(clients)] for offset in range(count))
