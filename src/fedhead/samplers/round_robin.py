"""Round robin: the clients take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedhead.samplers.base import Sampler, sampler


@sampler("round_robin")
@dataclass(frozen=True)
class RoundRobinSampler(Sampler):
    """Let the clients take turns in the order of their numbers; nothing is drawn."""

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return the clients after those of the round before, from the first again after the last.

        >>> [RoundRobinSampler().select(number, 2, {0: 9, 4: 1, 7: 5}, seed=0) for number in (1, 2, 3)]
        [[0, 4], [0, 7], [4, 7]]
        """
        clients = sorted(sizes)
        first = (round - 1) * count
        return sorted(clients[(first + place) % len(clients)] for place in range(count))
