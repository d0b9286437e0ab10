"""Registry of partitions and the parser of texts such as `dirichlet(0.1, capped)`.

A user's own partition is a subclass of `Partition`, or a function `(y, clients, rng, parameters with defaults)` that
returns one array of sample indices per client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhead.core.components.component_check import check_class, check_function
from fedhead.core.components.component_syntax import Call
from fedhead.core.components.parameters import parameters, required
from fedhead.core.components.ranges import Above, AtLeast
from fedhead.core.components.registry import Registry
from fedhead.core.system.errors import require, user_code
from fedhead.data.partitions.allocation import Indices
from fedhead.data.partitions.partition import (
    IID,
    CappedDirichlet,
    Dirichlet,
    EqualDirichlet,
    Natural,
    Partition,
    Skewed,
)
from fedhead.data.partitions.published_splits import FedETFDirichlet, MoonDirichlet

PartitionLike = str | Partition | type[Partition] | Callable[..., Any]  # specifies a partition in Python
CALLED_WITH = ("y", "clients", "rng")  # arguments of a user's function


@dataclass(frozen=True)
class FromFunction(Partition):
    """Partition by a user's function `(y, clients, rng, **parameters)` that returns one array of indices per client."""

    function: Callable[..., Any]
    text: str = field(repr=False, compare=False)  # the partition as written in recipes
    parameters: Mapping[str, Any]

    def assign(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Indices]:
        """Return the result of the user's function."""
        with user_code(f"partition {self}"):
            return list(self.function(y, clients, rng, **self.parameters))

    def __str__(self) -> str:
        return self.text


class Form(NamedTuple):
    """Description of how a built-in partition is written in recipes; a line of `fedhead ls partitions`."""

    text: str
    parameters: str
    description: str


class PartitionEntry(NamedTuple):
    """Factory of a registered partition."""

    make: Callable[[Call], Partition]
    forms: tuple[Form, ...] = ()


PARTITIONS = Registry[PartitionEntry]("partition", "fedhead.partitions", lambda entry, name: _checked(entry, name))
"""The partitions by name."""
partition = PARTITIONS.decorator
"""Register a partition under a name: a subclass of `Partition`, or a function `(y, clients, rng, …)`."""


def parse(rule: PartitionLike, folders: Iterable[str | Path] = ()) -> Partition:
    """Return a partition from its text in recipes, a class, a function or a partition.

    Args:
        rule: Text such as "dirichlet(0.1)", or a user's class or function with its defaults.
        folders: Folders in which `file.py:name` is searched before the working directory.

    Raises:
        BadInput: If the partition is unknown, or its parameters are unreadable or out of range.

    >>> parse("dirichlet(0.1, equal)")
    EqualDirichlet(alpha=0.1)
    >>> str(parse("skewed( 2 )"))
    'skewed(2)'
    """
    if isinstance(rule, Partition):
        return rule
    require(
        not isinstance(rule, int | float),
        f"partition is the number {rule}: name its rule as well, such as 'dirichlet({rule})'",
    )
    call, entry = PARTITIONS.resolve_call(rule, folders)
    return entry.make(call)


def _checked(entry: Any, name: str) -> PartitionEntry:
    if isinstance(entry, PartitionEntry):
        return entry
    if isinstance(entry, type) and issubclass(entry, Partition):
        cls = check_class(entry, name, Partition, needs=["assign"], defaults=False)
        return _entry(cls)
    function = check_function(
        entry, name, "partition", CALLED_WITH, "one array of indices per client", open_ended=True, base=Partition
    )
    options = dict(list(parameters(function).items())[len(CALLED_WITH) :])
    needed = [word for word in required(function) if word in options]
    return PartitionEntry(lambda call: FromFunction(function, call.text, call.arguments("partition", options, needed)))


def _entry(make: Callable[..., Partition], *forms: Form) -> PartitionEntry:
    return PartitionEntry(lambda call: make(**call.arguments("partition", parameters(make), required(make))), forms)


# -- the built-in ones --------------------------------------------------------------------------------
def _built_in(name: str, make: Callable[..., Partition], *forms: Form) -> None:
    PARTITIONS.register(name, _entry(make, *forms))


def _dirichlet(
    alpha: Annotated[float, Above(0)],
    form: Literal["plain", "capped", "equal", "moon", "fedetf"] = "plain",
    minimum: Annotated[int, AtLeast(0)] | None = None,
) -> Partition:
    """Return one of five partitions by the Dirichlet distribution."""
    if form == "capped":
        return CappedDirichlet(alpha) if minimum is None else CappedDirichlet(alpha, minimum)
    fix = f"dirichlet({alpha}, capped, …)"
    require(minimum is None, f"partition dirichlet: minimum={minimum} needs the form capped: {fix}")
    return {"plain": Dirichlet, "equal": EqualDirichlet, "moon": MoonDirichlet, "fedetf": FedETFDirichlet}[form](alpha)


_built_in("iid", IID, Form("iid", "", "shuffled and distributed evenly"))
_built_in(
    "dirichlet",
    _dirichlet,
    Form("dirichlet(alpha)", "alpha > 0", "each class cut by its own Dir(alpha) (FedETF); may leave clients empty"),
    Form("dirichlet(alpha, capped)", "alpha > 0, minimum=10", "at most N/K samples per client, a minimum (MOON, CCVR)"),
    Form("dirichlet(alpha, moon)", "alpha > 0", "capped, seeded by np.random.seed: the splits of MOON's public code"),
    Form("dirichlet(alpha, fedetf)", "alpha > 0", "plain, seeded by np.random.seed: splits of FedETF's public code"),
    Form("dirichlet(alpha, equal)", "alpha > 0", "clients of equal size, class shares from Dir(alpha) (FedClassAvg)"),
)
_built_in(
    "skewed", Skewed, Form("skewed(per_client)", "per_client >= 1", "a few classes per client, each shared evenly")
)
_built_in("natural", Natural, Form("natural", "column=site", "the clients of the data: an array of a file, or folders"))
