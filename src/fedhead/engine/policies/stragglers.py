"""Simulated stragglers: clients that don't finish their round in time, and what the server does about them.

FedProx's experiments (Li et al., 2020, section 5.2) let a share of each round's clients do less than their local
epochs; the server drops them, or takes the part that they have done.
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
    """Policy for the clients of a round that are late.

    Each client of each round is late with the same probability, whatever the others are, so that a client on another
    machine knows it by itself.

    Args:
        policy: `drop`: late clients are left out of the round and recorded as absent; `partial`: they do only a part of
            their local steps, drawn from one to all of them (FedProx draws whole epochs), and count as the others do.
        share: The probability with which a client is late.
        seed: What is drawn from; None: the run's seed.
    """

    policy: Policy
    share: Annotated[float, Above(0), AtMost(1)]
    seed: Annotated[int, AtLeast(0)] | None = None

    def drops(self, client: int, round: int, seed: int) -> bool:
        """Say whether the server does without a client in a round.

        Args:
            client: Number of the client.
            round: Number of the round.
            seed: Seed of the run.

        Returns:
            Whether it does.
        """
        return self.policy == "drop" and self._draw(client, round, seed)[0] < self.share

    def part(self, client: int, round: int, seed: int) -> float:
        """Return which part of its steps a client does.

        Args:
            client: Number of the client.
            round: Number of the round.
            seed: Seed of the run.

        Returns:
            A number above 0; 1 for a client that is not late or whose work does not count.
        """
        late, left_out = self._draw(client, round, seed)
        return 1 - left_out if self.policy == "partial" and late < self.share else 1.0

    def _draw(self, client: int, round: int, seed: int) -> tuple[float, float]:
        key = random.key(seed if self.seed is None else self.seed, "straggler", round, client)
        first, second = random.uniforms(key, 2)
        return float(first), float(second)
