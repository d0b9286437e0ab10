"""Checks of a user's component: a function, or a subclass whose hooks fit.

Every registry checks with these two functions, whether the component is built in, loaded by name or given in Python.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from fedhead.core.system.errors import BadInput, require

A = TypeVar("A")


def name_of(thing: Any) -> str:
    """Return the name of a component that was given as an object.

    >>> name_of(len), name_of(lambda x: x), name_of(functools.partial(round, ndigits=2))
    ('len', 'lambda', 'round(ndigits=2)')
    """
    if isinstance(thing, functools.partial):
        bound = [*map(repr, thing.args), *(f"{word}={value!r}" for word, value in thing.keywords.items())]
        return f"{name_of(thing.func)}({', '.join(bound)})"
    own = getattr(thing, "name", None)
    name = getattr(thing, "__name__", None) or (own if isinstance(own, str) and own else type(thing).__name__)
    return "lambda" if name == "<lambda>" else str(name)


def first_docline(thing: Any) -> str:
    """Return the first line of an object's docstring, which listings show."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def check_function(
    found: Any,
    name: str,
    kind: str,
    arguments: Sequence[str],
    gives: str,
    *,
    filled_in: Collection[str] = (),
    open_ended: bool = False,
    base: type | None = None,
) -> Callable[..., Any]:
    """Return a function that was registered, loaded or given, or refuse it in one line.

    Args:
        found: What has the name.
        name: As the user wrote it.
        kind: What it should be, such as "metric".
        arguments: What it is called with, in order.
        gives: What it returns, in words.
        filled_in: Names of further arguments that it gets if it takes them.
        open_ended: Whether further parameters may have no default, since a recipe gives them.
        base: Subclasses of this class serve as well.

    Raises:
        BadInput: If it is no function, can't be called with these arguments, or needs more.
    """
    called = ", ".join([*arguments, *(["…"] if open_ended else [])])
    serves = isinstance(found, type) and base is not None and issubclass(found, base)
    if not callable(found) or (isinstance(found, type) and not serves):
        what = f"the class {found.__name__}" if isinstance(found, type) else type(found).__name__
        either = "" if base is None else f"a subclass of {_public_name(base)} or "
        raise BadInput(f"{name} is {what}, no {kind}: name {either}a function ({called}) that returns {gives}")
    try:
        taken = list(inspect.signature(found).parameters.values())
    except (TypeError, ValueError):  # some functions written in C don't tell
        return typing.cast("Callable[..., Any]", found)
    places = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [*places[len(arguments) :], *(p for p in taken if p.kind is p.KEYWORD_ONLY)]
    needed = [p.name for p in rest if p.default is p.empty and p.name not in filled_in and not open_ended]
    too_few = len(places) < len(arguments) and not any(p.kind is p.VAR_POSITIONAL for p in taken)
    if too_few or needed:
        fix = f": give {needed[0]!r} a default value" if needed and not too_few else ""
        article = "an" if kind[0] in "aeiou" else "a"
        shown = ", ".join(p.name for p in taken)
        raise BadInput(f"{name} takes ({shown}), {article} {kind} is called with ({called}){fix}")
    return typing.cast("Callable[..., Any]", found)


def check_class(found: Any, name: str, base: type[A], *, needs: Collection[str] = (), defaults: bool = True) -> type[A]:
    """Return a class that was registered, loaded or given, or refuse it in one line.

    Args:
        found: What has the name.
        name: As the user wrote it.
        base: The class that it must inherit from, such as `Method`; if that is a dataclass, so must be the subclass.
        needs: Hooks that it has to override.
        defaults: Whether every field must have a default value.

    Raises:
        BadInput: If it is no subclass of `base`, lacks `@dataclass`, has a field without a default, or overrides a
            hook with other arguments than it is called with.
    """
    kind = base.__name__
    if not isinstance(found, type):
        what = (
            f"one of the class {type(found).__name__}" if isinstance(found, base) else f"of type {type(found).__name__}"
        )
        raise BadInput(f"{name} is {what}, not a class: name a subclass of fedhead.{kind}")
    require(issubclass(found, base), f"{name} is no {kind.lower()}: let {found.__name__} inherit from fedhead.{kind}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise BadInput(f"{name} is abstract: {found.__name__} still has to define {missing}")
    if dataclasses.is_dataclass(base):
        _check_fields(found, name, base, defaults)
    for word, hook in _hooks(base).items():
        if word in needs and getattr(found, word) is hook:
            taken = ", ".join(inspect.signature(hook).parameters)
            raise BadInput(f"{name}: {found.__name__} has to define {word}({taken})")
        _check_hook(found, word, hook, name)
    return found


def _check_fields(found: type, name: str, base: type, defaults: bool) -> None:
    for cls in found.__mro__[: found.__mro__.index(base)]:
        fields = [word for word, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)]
        if fields and "__dataclass_fields__" not in vars(cls):
            raise BadInput(f"{name}: {cls.__name__} has the field {fields[0]!r}: put @dataclass(frozen=True) above it")
    for field in dataclasses.fields(typing.cast(Any, found)):
        lacks_default = field.init and field.default is field.default_factory is dataclasses.MISSING
        require(
            not (defaults and lacks_default),
            f"{name}: the field {field.name!r} of {found.__name__} has no default value: give it one",
        )


def _public_name(base: type) -> str:
    package = base.__module__.partition(".")[0]
    return f"torch.nn.{base.__name__}" if package == "torch" else f"{package}.{base.__name__}"


def _hooks(base: type) -> dict[str, Any]:
    """Return the functions of the base class that a subclass may override."""
    found = {word: getattr(base, word) for word in dir(base) if not word.startswith("_")}
    return {word: hook for word, hook in found.items() if inspect.isfunction(hook)}


def _check_hook(cls: type, word: str, hook: Any, name: str) -> None:
    own = inspect.getattr_static(cls, word)
    if own is hook:
        return
    if not inspect.isfunction(own):
        require(
            callable(getattr(cls, word)),
            f"{name}: {cls.__name__}.{word} is {type(own).__name__}, it must be a function",
        )
        return
    wanted = list(inspect.signature(hook).parameters)
    try:
        inspect.signature(own).bind(*wanted)
    except TypeError:
        taken = ", ".join(inspect.signature(own).parameters)
        raise BadInput(
            f"{name}: {cls.__name__}.{word} takes ({taken}), it is called with ({', '.join(wanted)})"
        ) from None
