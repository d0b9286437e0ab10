"""Validation of parameters against type hints and ranges.

Used for values from Python, recipes, the command line and messages between machines. Errors name the parameter as the
caller wrote it.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union

from fedhead.core.components.ranges import AtLeast as AtLeast  # for the doctest
from fedhead.core.components.ranges import Range
from fedhead.core.system.errors import BadInput, require, require_known, unknown
from fedhead.core.system.text import printable

T = TypeVar("T")
P = ParamSpec("P")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


class Checked:
    """Base of dataclasses that validate their fields against type hints and ranges on creation.

    >>> from fedhead.core.training.optimizers import SGD
    >>> SGD(lr=-1)
    Traceback (most recent call last):
    fedhead.core.system.errors.BadInput: SGD: lr: -1 is out of range, it must be above 0
    """

    def __post_init__(self) -> None:
        """Validate every field and convert it to its type."""
        check_fields(self, f"{type(self).__name__}: ")


def check_fields(instance: Any, prefix: str = "") -> None:
    """Validate every field of a dataclass, also of a frozen one, and convert it to its type.

    Args:
        instance: New instance of the dataclass.
        prefix: Prefix of field names in errors.
    """
    for name, hint in parameters(type(instance)).items():
        object.__setattr__(instance, name, check(f"{prefix}{name}", getattr(instance, name), hint))


def from_mapping(cls: type[T], entries: Mapping[str, Any], noun: str = "key", **given: Any) -> T:
    """Create a dataclass from a mapping of values, which are validated.

    Args:
        cls: Dataclass to create.
        entries: Values by name, from a user or another machine.
        noun: Word for a name in errors.
        **given: Fields set by the program, not allowed in `entries`.

    Raises:
        BadInput: If a name is unknown or missing, or a value is invalid.
    """
    hints = {name: hint for name, hint in parameters(cls).items() if name not in given}
    for name in entries:
        require_known(noun, name, hints)
    for name in required(cls):
        require(name not in hints or name in entries, f"the {noun} {name!r} is missing")
    return cls(**given, **{name: check(name, value, hints[name]) for name, value in entries.items()})


def check(name: str, value: Any, hint: Any) -> Any:
    """Validate a value and convert it to a type.

    Args:
        name: Name of the value in errors.
        value: Value to validate.
        hint: Type, or `Annotated` with ranges.

    Raises:
        BadInput: If the value is of another type, not finite or out of range.

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
    """Validate named values; the error of an unknown name suggests the nearest one.

    Args:
        given: Values by name.
        hints: Types of all known names.
        owner: Owner of the parameters, such as `method fedprox`.
        prefix: Prefix of names in errors, such as `method.`.
    """
    for name in given:
        if name not in hints:
            other = f"for another {owner.partition(' ')[0]} write NAME({name}=…)"
            require(hints, f"{prefix}{name}: {owner} takes no parameters; {other}")
            raise unknown(f"parameter of {owner}", name, hints)
    return {name: check(f"{prefix}{name}", value, hints[name]) for name, value in given.items()}


def refuse_undeclared(cls: type, names: Iterable[str]) -> None:
    """Check that no name is a class attribute that is no parameter because it has no type."""
    for name in names:
        value, typed = getattr(cls, name, None), any(name in inspect.get_annotations(base) for base in cls.__mro__)
        if not typed and isinstance(value, bool | int | float | str | list | tuple):
            field = f"{name}: {type(value).__name__} = {value!r}"
            raise BadInput(f"{cls.__name__}: {name} has no type, so it is no parameter: annotate it, {field}")


def known_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function: the error of an unknown keyword argument suggests the nearest one."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                owner = function.__qualname__
                raise unknown(f"argument of {owner}", name, known, f"help(fedhead.{owner})")
        return function(*args, **kwargs)

    return call


def parameters(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the parameters of a class or function with their types and ranges.

    >>> from fedhead.core.training.optimizers import SGD
    >>> list(parameters(SGD))
    ['lr', 'momentum', 'weight_decay', 'nesterov']
    """
    try:
        return _parameters(target)
    except TypeError:  # an unhashable object can't be cached
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
        fields = [f for f in dataclasses.fields(target) if f.init and f.repr]  # other fields are internal
        names = [f.name for f in sorted(fields, key=lambda f: bool(f.kw_only))]  # in the order of __init__
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
    """Return the object that holds the type hints of a class, function, partial or callable."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isroutine(target) or dataclasses.is_dataclass(target):
        return target
    return getattr(target, "__init__") if isinstance(target, type) else type(target).__call__  # noqa: B009 (mypy: unsound)


class _Misfit(Exception):
    """Error of an invalid value; `exact` if its type is right, so that its message takes precedence in a union."""

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
        fits = isinstance(value, numbers.Real) and not isinstance(value, bool)  # includes numpy's scalars
    elif kind is int:
        fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    elif kind is Literal:
        comparable = isinstance(value, str | numbers.Integral | None) and not isinstance(value, bool)
        fits = comparable and value in arguments  # comparing an array gives an array
    elif kind in (None, type(None)):
        fits = value is None
    else:
        fits = not isinstance(kind, type) or isinstance(value, kind)
    if not fits:
        near = difflib.get_close_matches(str(value), map(str, arguments), n=1) if origin is Literal else []
        raise _Misfit(f"{value!r} is not {_say(hint)}" + "".join(f": did you mean {name!r}?" for name in near))
    if kind is float:
        return _finite(value)
    return _machine_integer(value) if kind is int else value


def _in_ranges(fitted: Any, written: Any, ranges: Sequence[Range]) -> Any:
    if not all(fitted in allowed for allowed in ranges):
        raise _Misfit(f"{written!r} is out of range, it must be {' and '.join(map(str, ranges))}", exact=True)
    return fitted


def _machine_integer(value: Any) -> int:
    if not -(2**63) <= value < 2**63:
        raise _Misfit(f"{printable(value, 30)} is beyond 64-bit integers", exact=True)
    return int(value)


def _finite(value: Any) -> float:
    try:
        out = float(value)
    except OverflowError:  # an integer beyond the largest float
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
    # exact types first, so that 1 stays an integer if both int and float are allowed
    return next((out for out in fitting if type(out) is type(value)), fitting[0])


def _fit_sequence(value: Any, hint: Any, arguments: tuple[Any, ...]) -> Any:
    misfit = _Misfit(f"{value!r} is not {_say(hint)}")
    value = value.tolist() if hasattr(value, "tolist") else value  # arrays and tensors
    if not isinstance(value, list | tuple):
        raise _Misfit(f"{misfit}, such as [{value}]") if isinstance(value, str | int | float) else misfit
    origin = typing.get_origin(hint) or hint
    if origin is tuple and arguments and Ellipsis not in arguments:
        hints: tuple[Any, ...] = arguments
    else:
        hints = (arguments[0] if arguments else Any,) * len(value)
    if len(hints) != len(value):
        raise misfit
    try:
        items = [_fit(v, a) for v, a in zip(value, hints, strict=True)]
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
    """Describe the values that a type hint with ranges allows.

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
