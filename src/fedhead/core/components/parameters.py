"""Parameters: values against the type hints and ranges of the fields or arguments that take them.

This is the only checker: Python, recipes, the command line and messages between machines all come here, and the error
names the parameter as that caller wrote it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union

from fedhead.core.components.ranges import AtLeast as AtLeast  # for the doctest
from fedhead.core.components.ranges import Range
from fedhead.core.system.errors import BadInput, require, require_known, unknown
from fedhead.core.system.text import printable

T = TypeVar("T")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


class Checked:
    """A dataclass whose values are checked against its fields' type hints and ranges when it is made.

    >>> from fedhead.core.training.optimizers import SGD
    >>> SGD(lr=-1)
    Traceback (most recent call last):
    fedhead.core.system.errors.BadInput: SGD: lr: -1 is out of range, it must be above 0
    """

    def __post_init__(self) -> None:
        """Check every value, and bring it to its field's type."""
        check_fields(self, f"{type(self).__name__}: ")


def check_fields(made: Any, prefix: str = "") -> None:
    """Check every value of a dataclass, also of a frozen one, and bring it to its field's type.

    Args:
        made: The dataclass, just made.
        prefix: Prefix of a field's name in an error.
    """
    for name, hint in parameters(type(made)).items():
        object.__setattr__(made, name, check(f"{prefix}{name}", getattr(made, name), hint))


def from_mapping(cls: type[T], entries: Mapping[str, Any], what: str = "key", **given: Any) -> T:
    """Make a dataclass from named values, each checked against the type and ranges of its field.

    Args:
        cls: The dataclass.
        entries: The values by name, as a user or another machine wrote them.
        what: What a name is called in an error.
        **given: Fields that the program sets itself; they are not among the names.

    Raises:
        BadInput: If a name is unknown or missing, or a value does not fit.
    """
    hints = {name: hint for name, hint in parameters(cls).items() if name not in given}
    for name in entries:
        require_known(what, name, hints)
    for name in required(cls):
        require(name not in hints or name in entries, f"the {what} {name!r} is missing")
    return cls(**given, **{name: check(name, value, hints[name]) for name, value in entries.items()})


def check(name: str, value: Any, hint: Any) -> Any:
    """Bring a value to the form that a type hint asks for.

    Args:
        name: What the value is called in an error.
        value: The value.
        hint: A type, or `Annotated` with ranges.

    Raises:
        BadInput: It is of another type, not finite, or out of range.

    >>> check("lr", 1, float)
    1.0
    >>> check("rounds", "ten", int)
    Traceback (most recent call last):
    fedhead.core.system.errors.BadInput: rounds: 'ten' is not a whole number
    """
    try:
        return _fit(value, hint)
    except _Misfit as misfit:
        raise BadInput(f"{name}: {misfit}") from None


def check_all(given: Mapping[str, Any], hints: Mapping[str, Any], owner: str, prefix: str = "") -> dict[str, Any]:
    """Check named values against the hints of what takes them; an unknown name is answered with the nearest.

    Args:
        given: The values by name.
        hints: Every name that there is, with its type.
        owner: What takes them, such as `method fedprox`.
        prefix: Prefix of a name where the user wrote it, such as `method.`.
    """
    for word in given:
        if word not in hints:
            require(hints, f"{prefix}{word}: {owner} takes no parameters")
            raise unknown(f"parameter of {owner}", word, hints)
    return {word: check(f"{prefix}{word}", value, hints[word]) for word, value in given.items()}


def parameters(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the parameters of a class or function with their types and ranges.

    >>> from fedhead.core.training.optimizers import SGD
    >>> list(parameters(SGD))
    ['lr', 'momentum', 'weight_decay', 'nesterov']
    """
    try:
        return _parameters(target)
    except TypeError:  # an object that can't be hashed, and so not be remembered
        return _parameters.__wrapped__(target)


def required(target: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that have no default value.

    >>> required(check_all)
    ['given', 'hints', 'owner']
    """
    known = parameters(target)
    return [p.name for p in inspect.signature(target).parameters.values() if p.default is p.empty and p.name in known]


@functools.cache
def _parameters(target: Any) -> Mapping[str, Any]:
    if dataclasses.is_dataclass(target):
        names = [f.name for f in dataclasses.fields(target) if f.init and f.repr]  # others are the program's own
    else:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [p.name for p in inspect.signature(target).parameters.values() if p.kind in kinds]
    try:
        hints = typing.get_type_hints(_annotated(target), include_extras=True)
    except NameError as error:
        raise BadInput(
            f"{getattr(target, '__name__', target)}: its type hints can't be read ({error}): import at run time what "
            "they name, not under TYPE_CHECKING"
        ) from error
    return types.MappingProxyType({name: hints.get(name, Any) for name in names if name != "self"})


def _annotated(target: Any) -> Any:
    """Return the object that carries the type hints of a class, function, partial or callable."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isroutine(target) or dataclasses.is_dataclass(target):
        return target
    return getattr(target, "__init__") if isinstance(target, type) else type(target).__call__  # noqa: B009 (mypy: unsound)


class _Misfit(Exception):
    """Why a value does not fit; `exact` if its type does, so that no other reading of it is meant."""

    def __init__(self, text: str, exact: bool = False):
        super().__init__(text)
        self.exact = exact


def _fit(value: Any, hint: Any) -> Any:
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _in_ranges(_fit(value, arguments[0]), value, [a for a in arguments[1:] if isinstance(a, Range)])
    if origin in (Union, types.UnionType):
        return _fit_any(value, hint, arguments)
    if origin in (tuple, list, Sequence) or hint in (tuple, list):
        return _fit_sequence(value, hint, arguments)
    if origin in (dict, Mapping):
        return _fit_mapping(value, hint, arguments)
    kind = hint if origin is None else origin
    if kind is float:
        fits = isinstance(value, numbers.Real) and not isinstance(value, bool)  # numpy's are such too
    elif kind is int:
        fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    elif kind is Literal:
        comparable = isinstance(value, str | numbers.Integral | None) and not isinstance(value, bool)
        fits = comparable and value in arguments  # an array has no single answer
    elif kind in (None, type(None)):
        fits = value is None
    else:
        fits = not isinstance(kind, type) or isinstance(value, kind)
    if not fits:
        raise _Misfit(f"{value!r} is not {_say(hint)}")
    if kind is float:
        return _finite(value)
    return _machine_integer(value) if kind is int else value


def _in_ranges(fitted: Any, written: Any, ranges: Sequence[Range]) -> Any:
    if not all(fitted in each for each in ranges):
        raise _Misfit(f"{written!r} is out of range, it must be {' and '.join(map(str, ranges))}", exact=True)
    return fitted


def _machine_integer(value: Any) -> int:
    if not -(2**63) <= value < 2**63:
        raise _Misfit(f"{printable(value, 30)} is beyond 64-bit integers", exact=True)
    return int(value)


def _finite(value: Any) -> float:
    try:
        out = float(value)
    except OverflowError:  # a whole number beyond the largest float
        out = math.inf
    if not math.isfinite(out):
        raise _Misfit(f"{printable(repr(value), 30)} is not finite", exact=True)
    return out


def _fit_any(value: Any, hint: Any, arguments: tuple[Any, ...]) -> Any:
    """Convert a value to one of several types."""
    fitting, misfits = [], []
    for argument in arguments:
        try:
            fitting.append(_fit(value, argument))
        except _Misfit as misfit:
            misfits.append(misfit)
    if not fitting:
        raise next((m for m in misfits if m.exact), _Misfit(f"{value!r} is not {_say(hint)}"))
    # an exact fit first, so that 1 stays a whole number where both int and float are welcome
    return next((out for out in fitting if type(out) is type(value)), fitting[0])


def _fit_sequence(value: Any, hint: Any, arguments: tuple[Any, ...]) -> Any:
    misfit = _Misfit(f"{value!r} is not {_say(hint)}")
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy's and PyTorch's arrays
    if not isinstance(value, list | tuple):
        raise misfit
    origin = typing.get_origin(hint) or hint
    if origin is tuple and arguments and Ellipsis not in arguments:
        each: tuple[Any, ...] = arguments
    else:
        each = (arguments[0] if arguments else Any,) * len(value)
    if len(each) != len(value):
        raise misfit
    try:
        items = [_fit(v, a) for v, a in zip(value, each, strict=True)]
    except _Misfit as inner:
        raise inner if inner.exact else misfit from None
    return items if origin is list else tuple(items)


def _fit_mapping(value: Any, hint: Any, arguments: tuple[Any, ...]) -> Any:
    misfit = _Misfit(f"{value!r} is not {_say(hint)}")
    if not isinstance(value, Mapping):
        raise misfit
    try:
        return {_fit(k, arguments[0]): _fit(v, arguments[1]) for k, v in value.items()}
    except _Misfit as inner:
        raise inner if inner.exact else misfit from None


def describe_type(hint: Any) -> str:
    """Return the values that a type hint with ranges allows, in words.

    >>> describe_type(Annotated[int, AtLeast(1)] | None)
    'a whole number, at least 1, or null'
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return ", ".join(
            [describe_type(arguments[0]), *(str(part) for part in arguments[1:] if isinstance(part, Range))]
        )
    if origin in (Union, types.UnionType):
        parts = [describe_type(argument) for argument in arguments]
        return (", or " if any("," in part for part in parts) else " or ").join(parts)
    return _say(hint)


def _say(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _say(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_say(a) for a in arguments)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin in (tuple, list, Sequence):
        if origin is not tuple or Ellipsis in arguments:
            return f"a list in brackets, each {_say(arguments[0])}"
        return f"a list of {len(arguments)} in brackets: " + ", ".join(_say(a) for a in arguments)
    if origin in (dict, Mapping):
        return f"a mapping from names, each {_say(arguments[1])}"
    if hint is Any:
        return "any value"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
