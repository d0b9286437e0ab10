"""Validation of components: functions by their signature, classes by their hooks and fields.

All registries use it, for components that are built in, loaded from files or passed in Python.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from fedhead.core.system.errors import BadInput, require

A = TypeVar("A")
_MISSPELLED = 0.85  # similarity to a hook from which a new name counts as misspelled; of built-in helpers at most 0.74


def name_of(thing: Any) -> str:
    """Return the name of a component that was passed as an object.

    >>> name_of(len), name_of(lambda x: x), name_of(functools.partial(round, ndigits=2))
    ('len', 'lambda', 'round(ndigits=2)')
    """
    if isinstance(thing, functools.partial):
        bound = [*map(repr, thing.args), *(f"{key}={value!r}" for key, value in thing.keywords.items())]
        return f"{name_of(thing.func)}({', '.join(bound)})"
    label = getattr(thing, "name", None)
    name = getattr(thing, "__name__", None) or (label if isinstance(label, str) and label else type(thing).__name__)
    return "lambda" if name == "<lambda>" else str(name)


def first_docline(thing: Any) -> str:
    """Return the first line of an object's docstring, for listings."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def check_function(
    value: Any,
    name: str,
    kind: str,
    arguments: Sequence[str],
    gives: str,
    *,
    filled_in: Collection[str] = (),
    open_ended: bool = False,
    base: type | None = None,
) -> Callable[..., Any]:
    """Check that a component is a function with the expected signature, and return it.

    Args:
        value: Object to check.
        name: Name as the user wrote it.
        kind: Kind of component, such as "metric".
        arguments: Names of the positional arguments of a call.
        gives: Description of the return value.
        filled_in: Names of optional arguments, passed if the function accepts them.
        open_ended: Whether other parameters may lack a default, since a recipe provides them.
        base: Class whose subclasses are accepted as well.

    Raises:
        BadInput: If it is not a function, or does not accept these arguments, or requires more.
    """
    called = ", ".join([*arguments, *(["…"] if open_ended else [])])
    serves = isinstance(value, type) and base is not None and issubclass(value, base)
    if not callable(value) or (isinstance(value, type) and not serves):
        actual = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        either = "" if base is None else f"a subclass of {_public_name(base)} or "
        raise BadInput(f"{name} is {actual}, no {kind}: name {either}a function ({called}) that returns {gives}")
    try:
        taken = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):  # some C functions have no signature
        return typing.cast("Callable[..., Any]", value)
    places = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = [*places[len(arguments) :], *(p for p in taken if p.kind is p.KEYWORD_ONLY)]
    needed = [p.name for p in rest if p.default is p.empty and p.name not in filled_in and not open_ended]
    too_few = len(places) < len(arguments) and not any(p.kind is p.VAR_POSITIONAL for p in taken)
    if too_few or needed:
        fix = f": give {needed[0]!r} a default value" if needed and not too_few else ""
        article = "an" if kind[0] in "aeiou" else "a"
        shown = ", ".join(p.name for p in taken)
        raise BadInput(f"{name} takes ({shown}), {article} {kind} is called with ({called}){fix}")
    return typing.cast("Callable[..., Any]", value)


def check_class(value: Any, name: str, base: type[A], *, needs: Collection[str] = (), defaults: bool = True) -> type[A]:
    """Check that a component is a subclass with valid hooks and fields, and return it.

    Args:
        value: Object to check.
        name: Name as the user wrote it.
        base: Required base class, such as `Method`; if it is a dataclass, the subclass must be one too.
        needs: Hooks that it must override.
        defaults: Whether every field must have a default value.

    Raises:
        BadInput: If it is not a subclass of `base`, lacks `@dataclass`, has a field without a default, misspells a
            hook or overrides one with another signature.
    """
    kind = base.__name__
    if not isinstance(value, type):
        actual = (
            f"one of the class {type(value).__name__}" if isinstance(value, base) else f"of type {type(value).__name__}"
        )
        raise BadInput(f"{name} is {actual}, not a class: name a subclass of fedhead.{kind}")
    require(issubclass(value, base), f"{name} is no {kind.lower()}: let {value.__name__} inherit from fedhead.{kind}")
    if inspect.isabstract(value):
        missing = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
        raise BadInput(f"{name} is abstract: {value.__name__} still has to define {missing}")
    if dataclasses.is_dataclass(base):
        _check_fields(value, name, base, defaults)
    _check_names(value, name, base)
    for method, hook in _hooks(base).items():
        if method in needs and getattr(value, method) is hook:
            taken = ", ".join(inspect.signature(hook).parameters)
            raise BadInput(f"{name}: {value.__name__} has to define {method}({taken})")
        _check_hook(value, method, hook, name)
    return value


def _check_fields(value: type, name: str, base: type, defaults: bool) -> None:
    for cls in value.__mro__[: value.__mro__.index(base)]:
        fields = [field for field, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)]
        if "__dataclass_fields__" in vars(cls):
            continue
        if fields:
            raise BadInput(f"{name}: {cls.__name__} has the field {fields[0]!r}: put @dataclass(frozen=True) above it")
        if "__init__" in vars(cls):
            raise BadInput(
                f"{name}: {cls.__name__} has its own __init__: declare its parameters as fields, such as "
                "mu: float = 0.1, and put @dataclass(frozen=True) above the class"
            )
    for field in dataclasses.fields(typing.cast(Any, value)):
        lacks_default = field.init and field.default is field.default_factory is dataclasses.MISSING
        require(
            not (defaults and lacks_default),
            f"{name}: the field {field.name!r} of {value.__name__} has no default value: give it one",
        )


def _check_names(value: type, name: str, base: type) -> None:
    """Refuse a function whose name is nearly that of a hook, which would never be called."""
    for cls in value.__mro__[: value.__mro__.index(base)]:
        hooks = set(_hooks(base)) - set(vars(cls))
        for method, thing in vars(cls).items():
            inherited = any(hasattr(parent, method) for parent in cls.__bases__)
            if inherited or method.startswith("_") or not inspect.isfunction(thing):
                continue
            for hook in difflib.get_close_matches(method, hooks, n=1, cutoff=_MISSPELLED):
                raise BadInput(
                    f"{name}: {cls.__name__}.{method} is no hook of fedhead.{base.__name__}: did you mean {hook!r}? "
                    f"Name a helper _{method}"
                )


def _public_name(base: type) -> str:
    package = base.__module__.partition(".")[0]
    return f"torch.nn.{base.__name__}" if package == "torch" else f"{package}.{base.__name__}"


def _hooks(base: type) -> dict[str, Any]:
    """Return the functions of the base class that a subclass may override."""
    public = {name: getattr(base, name) for name in dir(base) if not name.startswith("_")}
    return {name: hook for name, hook in public.items() if inspect.isfunction(hook)}


def _check_hook(cls: type, method: str, hook: Any, name: str) -> None:
    override = inspect.getattr_static(cls, method)
    if override is hook:
        return
    if not inspect.isfunction(override):
        require(
            callable(getattr(cls, method)),
            f"{name}: {cls.__name__}.{method} is {type(override).__name__}, it must be a function",
        )
        return
    wanted = list(inspect.signature(hook).parameters)
    try:
        inspect.signature(override).bind(*wanted)
    except TypeError:
        taken = ", ".join(inspect.signature(override).parameters)
        raise BadInput(
            f"{name}: {cls.__name__}.{method} takes ({taken}), it is called with ({', '.join(wanted)})"
        ) from None
