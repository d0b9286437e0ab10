"""Samplers: which clients take part in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from fedhead.core.components.component_check import check_class
from fedhead.core.components.parameters import Checked
from fedhead.core.components.registry import Registry


@dataclass(frozen=True)
class Sampler(Checked):
    """A rule that selects the clients of a round.

    Both hooks are pure: what they return depends on their arguments alone, so that a resumed run and every machine
    select the same clients. Random numbers come from `fedhead.random`, with a key made of the seed and the round.

    Attributes:
        name: Name in errors: the registered one, or that of the class.
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **settings: Any) -> None:
        """Give a class without a name that of the class."""
        super().__init_subclass__(**settings)
        if "name" not in vars(cls):
            cls.name = cls.__name__

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


SAMPLERS = Registry[type[Sampler]](
    "sampler",
    "fedhead.samplers",
    lambda found, name: check_class(found, name, Sampler, needs=["select"]),
    home=["fedhead.samplers"],
)
"""The samplers by name."""
S = TypeVar("S", bound=type[Sampler])


def sampler(name: str) -> Callable[[S], S]:
    """Register a sampler under a name, for recipes and the command line.

    Args:
        name: The name.

    Returns:
        A decorator of subclasses of `Sampler`.
    """
    return SAMPLERS.decorator(name)
