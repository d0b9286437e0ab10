"""What methods and stages have in common: they are frozen dataclasses with options."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

from fedhead.algorithm.base import Algorithm
from fedhead.core.components.component_check import check_class
from fedhead.core.components.parameters import parameters
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below, Between, Range
from fedhead.core.system.errors import BadInput
from fedhead.testing.failure import CheckFailed

A = TypeVar("A", bound=Algorithm)


def instance(component: A | type[A], base: type[A]) -> A:
    """Make an instance of a class, with its defaults, or take the one given.

    Raises:
        CheckFailed: The registry would refuse it: it is of another kind, no dataclass, or a hook does not fit.
    """
    cls = component if isinstance(component, type) else type(component)
    try:
        check_class(cls, cls.__name__, base, defaults=isinstance(component, type))
        return component if isinstance(component, base) else cls()
    except BadInput as error:
        raise CheckFailed(str(error)) from error


def check_options(component: Algorithm) -> None:
    """Check that a component can be made again from its options, and refuses values out of their declared ranges."""
    owner = type(component).__name__
    again = dataclasses.replace(component)  # type: ignore[type-var]  # every algorithm is a dataclass
    if again != component:
        raise CheckFailed(f"{owner} made again with the same options is another one")
    for name, hint in parameters(type(component)).items():
        for limit in _ranges(hint):
            _check_range(component, name, limit)


def _check_range(component: Algorithm, name: str, limit: Range) -> None:
    owner = type(component).__name__
    if getattr(component, name) is not None and not _holds(getattr(component, name), limit):
        raise CheckFailed(f"{owner}: {name} is {getattr(component, name)!r}, it must be {limit}")
    for value in _outside(limit):
        try:
            dataclasses.replace(component, **{name: value})  # type: ignore[type-var]  # every algorithm is a dataclass
        except BadInput:
            continue
        raise CheckFailed(
            f"{owner} takes {name}={value!r}, which must be {limit}: call super().__post_init__() first in its own"
        )


def _holds(value: Any, limit: Range) -> bool:
    """Whether a value, or all that a list holds, lies in a range."""
    return all(_holds(each, limit) for each in value) if isinstance(value, tuple | list) else value in limit


def _ranges(hint: Any) -> Iterator[Range]:
    """The ranges of a single value or of one that may be missing; those inside lists are not tried."""
    metadata = getattr(hint, "__metadata__", ())
    yield from (limit for limit in metadata if isinstance(limit, Range))
    if not metadata and type(None) in typing.get_args(hint):
        for each in typing.get_args(hint):
            yield from _ranges(each)


def _outside(limit: Range) -> list[float]:
    """Values just out of a range."""
    match limit:
        case AtLeast(bound):
            return [bound - 1]
        case AtMost(bound):
            return [bound + 1]
        case Above(bound) | Below(bound):
            return [bound]
        case Between(low, high):
            return [low - 1, high + 1]
    return []
