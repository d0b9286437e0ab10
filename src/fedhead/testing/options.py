"""Options of methods and stages, which are frozen dataclasses, and their declared ranges."""

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
from fedhead.testing.checks import CheckFailed, require

A = TypeVar("A", bound=Algorithm)


def instance(component: A | type[A], base: type[A]) -> A:
    """Return a component, made with its defaults if a class is given.

    Raises:
        CheckFailed: The registry would refuse it: it is of another kind, no dataclass, or a hook does not fit.
    """
    cls = component if isinstance(component, type) else type(component)
    try:
        check_class(cls, cls.__name__, base, defaults=isinstance(component, type))
        return component if isinstance(component, base) else cls()
    except BadInput as error:
        raise CheckFailed(str(error)) from error


def check_ranges(component: Algorithm) -> None:
    """Check that a component can be made again from its options, and refuses values out of their declared ranges."""
    owner = type(component).__name__
    again = dataclasses.replace(component)  # type: ignore[type-var]  # every algorithm is a dataclass
    require(again == component, f"{owner} made again with the same options is another one")
    for name, hint in parameters(type(component)).items():
        value = getattr(component, name)
        for limit in _ranges(hint):
            in_range = value is None or _holds(value, limit)
            require(in_range, f"{owner}: {name} is {value!r}, it must be {limit}")
            for outside in _outside(limit):
                require(
                    _refuses(component, {name: outside}),
                    f"{owner} takes {name}={outside!r}, which must be {limit}: call super().__post_init__() first in "
                    "its own",
                )


def _refuses(component: Algorithm, options: dict[str, Any]) -> bool:
    try:
        dataclasses.replace(component, **options)  # type: ignore[type-var]  # every algorithm is a dataclass
    except BadInput:
        return True
    return False


def _holds(value: Any, limit: Range) -> bool:
    """Return whether a value, or each value of a list, lies in a range."""
    return all(_holds(each, limit) for each in value) if isinstance(value, tuple | list) else value in limit


def _ranges(hint: Any) -> Iterator[Range]:
    """Yield the ranges of a single or optional value; those inside lists are not tried."""
    metadata = getattr(hint, "__metadata__", ())
    yield from (limit for limit in metadata if isinstance(limit, Range))
    if not metadata and type(None) in typing.get_args(hint):
        for each in typing.get_args(hint):
            yield from _ranges(each)


def _outside(limit: Range) -> list[float]:
    """Return values just out of a range."""
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
