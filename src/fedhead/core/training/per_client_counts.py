"""Amounts of local work: numbers of epochs or steps of each client in a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedhead.core.components.component_syntax import read_call
from fedhead.core.components.parameters import Checked, parameters, required
from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import BadInput, require_known
from fedhead.core.training import random

Count = Annotated[int, AtLeast(1)]


@dataclass(frozen=True)
class Uniform(Checked):
    """Amount drawn uniformly from `low` to `high` for each client.

    Args:
        low: Smallest amount.
        high: Largest amount.
        per: `client`: drawn once, the same in every round; `round`: drawn in every round, as in FedNova's experiments
            (Wang et al., 2020, section 6).
        seed: Seed of the draw; None: the run's seed.
    """

    low: Count
    high: Count
    per: Literal["client", "round"] = "client"
    seed: Annotated[int, AtLeast(0)] | None = None

    def __post_init__(self) -> None:
        """Validate every field, and that `low` is at most `high`."""
        super().__post_init__()
        if self.low > self.high:
            raise BadInput(f"uniform({self.low}, {self.high}): the first number must be at most the second")

    def of(self, client: int, round: int, seed: int) -> int:
        """Return a client's amount in a round."""
        path = (client,) if self.per == "client" else (client, round)
        drawn = random.uniforms(random.key(seed if self.seed is None else self.seed, "amount", *path), 1)
        return self.low + int(drawn[0] * (self.high - self.low + 1))


Amount = Count | tuple[Count, ...] | Uniform  # equal for all clients, one per client, or drawn


def read(value: int | tuple[int, ...] | str, name: str) -> int | tuple[int, ...] | Uniform:
    """Parse an amount of a recipe: a number, a list with one per client, or `uniform(1, 5)`.

    Args:
        value: Value in the recipe.
        name: Key of the recipe.

    Raises:
        BadInput: If it is none of these.

    >>> read("uniform(1, 5, per=round)", "local_epochs")
    Uniform(low=1, high=5, per='round', seed=None)
    """
    if not isinstance(value, str):
        return value
    call = read_call(value, name)
    require_known(f"form of {name}", call.name, ["uniform"])
    return Uniform(**call.arguments(name, parameters(Uniform), required(Uniform)))


def amount_of(amount: Amount, client: int, round: int, seed: int) -> int:
    """Return the amount of one client in a round.

    >>> amount_of(3, client=1, round=1, seed=0), amount_of((3, 5), client=1, round=1, seed=0)
    (3, 5)
    """
    if isinstance(amount, Uniform):
        return amount.of(client, round, seed)
    return amount[client] if isinstance(amount, tuple) else amount


def mean(amount: Amount) -> float:
    """Return the mean amount of clients."""
    if isinstance(amount, Uniform):
        return (amount.low + amount.high) / 2
    return sum(amount) / len(amount) if isinstance(amount, tuple) else float(amount)


def check_clients(amount: Amount, clients: int, name: str) -> None:
    """Check that a list has one entry per client."""
    if isinstance(amount, tuple) and len(amount) != clients:
        raise BadInput(f"{name} lists {len(amount)} numbers for {clients} clients: give one per client")
