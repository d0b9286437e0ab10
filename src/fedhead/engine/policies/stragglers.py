"""Simulated stragglers: clients that don't finish a round in time, and the server's policy for them.

In FedProx's experiments (Li et al., 2020, section 5.2), a share of each round's clients trains for fewer local epochs.
The server drops them, or aggregates their partial work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedhead.core.components.parameters import Checked
from fedhead.core.components.ranges import Above, AtLeast, AtMost
from fedhead.core.training import random

Policy = Literal["drop", "partial"]


@dataclass(frozen=True)
class Stragglers(Checked):
    """Policy for late clients.

    Each client is late with the same probability, independently of the others. A remote client can thus determine it
    without communication.

    Args:
        policy: `drop`: late clients are left out of the round and recorded as absent. `partial`: they do a random part
            of their local steps, from one step to all (FedProx draws whole epochs), and count like the others.
        share: Probability that a client is late.
        seed: Seed of the draws; None: the run's seed.
    """

    policy: Policy
    share: Annotated[float, Above(0), AtMost(1)]
    seed: Annotated[int, AtLeast(0)] | None = None

    def drops(self, client: int, round: int, seed: int) -> bool:
        """Return whether a client is late and dropped from a round.

        Args:
            client: Number of the client.
            round: Number of the round.
            seed: Seed of the run.

        Returns:
            True if the client is dropped.
        """
        return self.policy == "drop" and self._draw(client, round, seed)[0] < self.share

    def part(self, client: int, round: int, seed: int) -> float:
        """Return the fraction of its local steps that a client does.

        Args:
            client: Number of the client.
            round: Number of the round.
            seed: Seed of the run.

        Returns:
            Fraction above 0; 1 unless the client is late and the policy is `partial`.
        """
        late, left_out = self._draw(client, round, seed)
        return 1 - left_out if self.policy == "partial" and late < self.share else 1.0

    def _draw(self, client: int, round: int, seed: int) -> tuple[float, float]:
        key = random.key(seed if self.seed is None else self.seed, "straggler", round, client)
        first, second = random.uniforms(key, 2)
        return float(first), float(second)
