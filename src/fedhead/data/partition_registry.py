"""Partitions by name: `parse("dirichlet(0.1, capped)")` reads what a recipe says.

A user's own partition is a subclass of `Partition`, or a function `(y, clients, rng, parameters with defaults)` that
returns one array of rows per client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhead.core.calls import read_call, split_call
from fedhead.core.errors import BadInput, FedheadError
from fedhead.core.parameters import check_all, parameters
from fedhead.core.registry import Registry
from fedhead.data.allocation import Rows
from fedhead.data.partition import IID, CappedDirichlet, Dirichlet, EqualDirichlet, Given, Partition, Skewed


@dataclass(frozen=True)
class FromFunction(Partition):
    """A user's function `(y, clients, rng, **parameters)` that returns one array of rows per client."""

    function: Callable[..., Any]
    text: str  # as the recipe writes it
    parameters: Mapping[str, Any]

    def deal(self, y: NDArray[Any], classes: int, clients: int, rng: np.random.RandomState) -> list[Rows]:
        try:
            return list(self.function(y, clients, rng, **self.parameters))
        except FedheadError:
            raise
        except Exception as error:  # the user's own code may raise anything
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise BadInput(f"partition {self}: the function raised {reason}") from error

    def __str__(self) -> str:
        return self.text


class Form(NamedTuple):
    """One way to write a built-in partition."""

    text: str
    parameters: str
    description: str
    pattern: str  # its groups are named as the fields of `kind`
    kind: type[Partition]


class Entry(NamedTuple):
    """A partition by name: how its parameters are read."""

    make: Callable[[str], Partition]  # from the whole text, such as "dirichlet(0.1)"
    forms: tuple[Form, ...] = ()


P = TypeVar("P")
PARTITIONS = Registry[Entry]("partition", "fedhead.partitions", lambda found, name: _checked(found, name))


def partition(name: str) -> Callable[[P], P]:
    """Register a partition under a name: a subclass of `Partition`, or a function `(y, clients, rng, …)`."""
    return PARTITIONS.decorator(name)


def parse(text: str | Partition, folders: Iterable[str | Path] = ()) -> Partition:
    """Read a partition as recipes write it; `folders` are those of `Registry.find`.

    >>> parse("dirichlet(0.1, equal)")
    EqualDirichlet(alpha=0.1)
    >>> str(parse("skewed( 2 )"))
    'skewed(2)'
    """
    if isinstance(text, Partition):
        return text
    return PARTITIONS.find(split_call(str(text))[0], folders).make(str(text).strip())


def _checked(found: Any, name: str) -> Entry:
    if isinstance(found, Entry):
        return found
    if isinstance(found, type) and issubclass(found, Partition):
        if found.deal is Partition.deal:
            raise BadInput(f"{name}: {found.__name__} has no method deal(self, y, classes, clients, rng)")
        return Entry(lambda text: found(**_arguments(text, parameters(found))))
    if isinstance(found, type) or not callable(found):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise BadInput(
            f"{name} is {kind}, no partition: name a subclass of fedhead.Partition or a function (y, clients, rng)"
        )
    hints = parameters(found)
    if len(hints) < 3:
        raise BadInput(f"{name} takes ({', '.join(hints)}), a partition is called with (y, clients, rng, …)")
    own = dict(list(hints.items())[3:])
    return Entry(lambda text: FromFunction(found, text, _arguments(text, own)))


def _arguments(text: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """What stands in the parentheses, by the names of the parameters, checked."""
    call = read_call(text, "partition")
    if len(call.positional) > len(hints):
        takes = ", ".join(hints) or "no parameters"
        raise BadInput(f"partition {text!r}: {len(call.positional)} values are too many, {call.name} takes {takes}")
    first = dict(zip(hints, call.positional, strict=False))
    if twice := first.keys() & call.named.keys():
        raise BadInput(f"partition {text!r}: {min(twice)} is given twice")
    return check_all(first | call.named, hints, f"partition {call.name}", f"partition {text}: ")


def _built_in(name: str, *forms: Form) -> None:
    def make(text: str) -> Partition:
        for form in forms:
            if match := re.fullmatch(form.pattern, text):
                given = {word: _number(value) for word, value in match.groupdict().items() if value is not None}
                return form.kind(**check_all(given, parameters(form.kind), f"partition {name}", f"partition {text}: "))
        raise BadInput(f"partition {text!r} can't be read; write it as {' or '.join(form.text for form in forms)}")

    PARTITIONS.register(name, Entry(make, forms))


_VALUE = r"[^\s,()]+"
_ALPHA = rf"\s*(?P<alpha>{_VALUE})\s*"
_built_in("iid", Form("iid", "", "shuffled and dealt out evenly", r"iid", IID))
_built_in(
    "dirichlet",
    Form(
        "dirichlet(alpha)",
        "alpha > 0",
        "each class is cut by its own Dir(alpha) over clients (FedETF); may leave clients empty",
        rf"dirichlet\({_ALPHA}\)",
        Dirichlet,
    ),
    Form(
        "dirichlet(alpha, capped)",
        "alpha > 0, minimum=10",
        "the same, with a cap of N/K samples per client and a minimum (MOON, CCVR)",
        rf"dirichlet\({_ALPHA},\s*capped\s*(?:,\s*minimum\s*=\s*(?P<minimum>{_VALUE})\s*)?\)",
        CappedDirichlet,
    ),
    Form(
        "dirichlet(alpha, equal)",
        "alpha > 0",
        "clients of equal size, class proportions from Dir(alpha) (FedClassAvg)",
        rf"dirichlet\({_ALPHA},\s*equal\s*\)",
        EqualDirichlet,
    ),
)
_built_in(
    "skewed",
    Form(
        "skewed(classes)",
        "classes >= 1",
        "a few distinct classes per client, each shared evenly by those who hold it",
        rf"skewed\(\s*(?P<per_client>{_VALUE})\s*\)",
        Skewed,
    ),
)
_built_in("given", Form("given", "", "the data is already split by site", r"given", Given))


def _number(text: str) -> int | float | str:
    """Return the number that a text stands for; other text stays as it is, for its parameter to refuse."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
