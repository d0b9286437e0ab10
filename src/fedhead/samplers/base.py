"""Base class and registry of samplers, which select the cohort of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedhead.core.components.component import Component
from fedhead.core.components.registry import Registry


@dataclass(frozen=True)
class Sampler(Component):
    """Base class of samplers.

    Both hooks are pure: they depend on their arguments alone. A resumed run and every machine thus select the same
    clients. Draw random numbers with `fedhead.random` and a key from seed and round.
    """

    def select(self, round: int, count: int, sizes: Mapping[int, int], seed: int) -> Sequence[int]:
        """Return the cohort of a round; pure.

        Args:
            round: Number of the round, from 1.
            count: Number of clients to select, from the run's `participation`; at most the number of clients.
            sizes: Number of training samples of each available client.
            seed: Seed of the run.

        Returns:
            Client numbers without duplicates. An empty cohort leaves the model unchanged.
        """
        raise NotImplementedError

    def inclusion(self, count: int, sizes: Mapping[int, int]) -> Mapping[int, float] | None:
        """Return the inclusion probability of each client, if these differ; pure.

        The server divides each client's number of samples by its probability (Horvitz and Thompson, 1952), so that
        means weighted by samples do not overweight frequently selected clients. SCAFFOLD, FedDyn and FedNH weight all
        clients of a round alike.

        Args:
            count: As for `select`.
            sizes: As for `select`.

        Returns:
            Probability above 0 of each client; None: all are equal.
        """
        return None


SAMPLERS = Registry.of(Sampler, home=["fedhead.samplers"], needs=["select"])
"""Registry of samplers."""
sampler = SAMPLERS.decorator
"""Decorator that registers a subclass of `Sampler` under a name, for recipes and the command line."""
