"""Samplers: which clients take part in a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedhead.core.components.component import Component
from fedhead.core.components.registry import Registry


@dataclass(frozen=True)
class Sampler(Component):
    """A rule that selects the clients of a round.

    Both hooks are pure: what they return depends on their arguments alone, so that a resumed run and every machine
    select the same clients. Random numbers come from `fedhead.random`, with a key made of the seed and the round.

    """

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return the clients that take part in a round; pure.

        Args:
            round: Number of the round, from 1.
            count: How many clients the run's `participation` asks for, at most as many as there are.
            sizes: Training samples of each client that can take part, by its number.
            seed: Seed of the run.

        Returns:
            The clients' numbers, each once. Where it returns none, the round leaves the model as it is.
        """
        raise NotImplementedError

    def inclusion(self, count: int, sizes: Mapping[int, int]) -> Mapping[int, float] | None:
        """Return the probability with which each client takes part in a round, where these differ; pure.

        The server divides the number of samples by which a client is weighted by it (Horvitz and Thompson, 1952), so
        that clients that are selected often don't count more for it.

        Args:
            count: As for `select`.
            sizes: As for `select`.

        Returns:
            One probability above 0 per client, by its number; None: all clients have the same.
        """
        return None


SAMPLERS = Registry.of(Sampler, home=["fedhead.samplers"], needs=["select"])
"""The samplers by name."""
sampler = SAMPLERS.decorator
"""Register a sampler under a name, for recipes and the command line: a decorator of subclasses of `Sampler`."""
