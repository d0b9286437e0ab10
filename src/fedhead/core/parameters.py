"""Values against type hints: a recipe's values are checked against the fields of what they configure."""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from fedhead.core.errors import BadInput, unknown

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


def check(key: str, value: Any, hint: Any) -> Any:
    """The value in the form that the hint asks for, or `BadInput` with the key's name.

    >>> check("lr", 1, float)
    1.0
    >>> check("rounds", "ten", int)
    Traceback (most recent call last):
    fedhead.core.errors.BadInput: rounds: 'ten' is not a whole number
    """
    fits, out = _fit(value, hint)
    if not fits:
        raise BadInput(f"{key}: {value!r} is not {_say(hint)}")
    if isinstance(out, float) and not math.isfinite(out):
        raise BadInput(f"{key}: {value!r} is not finite")
    return out


def parameters(target: Callable[..., Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a class or function takes by name, with the type of each.

    >>> from fedhead.core.optimizers import SGD
    >>> list(parameters(SGD))
    ['lr', 'momentum', 'weight_decay', 'nesterov']
    """
    if dataclasses.is_dataclass(target):
        names = [f.name for f in dataclasses.fields(target) if f.init and f.repr]  # others are the program's own
        hints = typing.get_type_hints(target)
    else:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names = [p.name for p in inspect.signature(target).parameters.values() if p.kind in kinds]
        hints = typing.get_type_hints(target if inspect.isroutine(target) else getattr(target, "__init__"))  # noqa: B009 (mypy: unsound)
    return {name: hints.get(name, Any) for name in names if name not in leave_out and name != "self"}


def check_parameters(kind: str, name: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> dict[str, Any]:
    """Every given parameter checked against its hint; an unknown one is answered with the nearest that there is."""
    prefix = f"stage.{name}" if kind == "stage" else kind
    for word in given:
        if word not in hints:
            if not hints:
                raise BadInput(f"{prefix}.{word}: {kind} {name!r} takes no parameters")
            raise unknown(f"parameter of {kind} {name}", word, hints)
    return {word: check(f"{prefix}.{word}", value, hints[word]) for word, value in given.items()}


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
    if hint is Any:
        return True, value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        # an exact fit first, so that 1 stays a whole number where both int and float are welcome
        fitting = [out for fits, out in (_fit(value, a) for a in arguments) if fits]
        exact = [out for out in fitting if type(out) is type(value)]
        return bool(fitting), (exact or fitting or [value])[0]
    if origin is Literal:
        return value in arguments and not isinstance(value, bool), value
    if origin in (tuple, list) or hint in (tuple, list):
        return _fit_sequence(value, origin or hint, arguments)
    if hint is float:
        fits = isinstance(value, numbers.Real) and not isinstance(value, bool)  # numpy's are such too
        return fits, float(value) if fits else value
    if hint is int:
        fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return fits, int(value) if fits else value
    if hint in (None, type(None)):
        return value is None, value
    return (isinstance(value, hint), value) if isinstance(hint, type) else (True, value)


def _fit_sequence(value: Any, kind: Any, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    if not isinstance(value, list | tuple):
        return False, value
    if not arguments:
        return True, kind(value)
    each: tuple[Any, ...] = arguments
    if kind is list or (len(arguments) == 2 and arguments[1] is Ellipsis):
        each = (arguments[0],) * len(value)
    if len(each) != len(value):
        return False, value
    items = [_fit(v, a) for v, a in zip(value, each, strict=True)]
    return all(fits for fits, _ in items), kind(out for _, out in items)


def _say(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_say(a) for a in arguments)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin in (tuple, list):
        if origin is list or Ellipsis in arguments:
            return f"a list in brackets, each {_say(arguments[0])}"
        return f"a list of {len(arguments)} in brackets: " + ", ".join(_say(a) for a in arguments)
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))
