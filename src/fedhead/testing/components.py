"""What methods and stages have in common: they are frozen dataclasses with options."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from fedhead.algorithm.base import Algorithm
from fedhead.testing.failure import CheckFailed

A = TypeVar("A", bound=Algorithm)


def instance(component: A | type[A], base: type[A]) -> A:
    """Make an instance of a class, with its defaults, or take the one given.

    Raises:
        CheckFailed: It is of another kind, or no frozen dataclass.
    """
    word = base.__name__
    cls = component if isinstance(component, type) else type(component)
    if not issubclass(cls, base):
        raise CheckFailed(f"{cls.__name__} is no {word.lower()}: let it inherit from fh.{word}")
    for kind in cls.__mro__[: cls.__mro__.index(base)]:
        parameters: Any = vars(kind).get("__dataclass_params__")
        if parameters is None or not parameters.frozen:
            raise CheckFailed(f"{kind.__name__} is no frozen dataclass: write @dataclass(frozen=True) above it")
    if isinstance(component, base):
        return component
    try:
        return cls()
    except TypeError as error:
        raise CheckFailed(
            f"{cls.__name__} can't be made without arguments ({error}): give its options defaults, or check an instance"
        ) from error


def check_options(component: Algorithm) -> None:
    """Check that a component can be made again from its options."""
    again = dataclasses.replace(component)  # type: ignore[type-var]  # every algorithm is a dataclass
    if again != component:
        raise CheckFailed(f"{type(component).__name__} made again with the same options is another one")
