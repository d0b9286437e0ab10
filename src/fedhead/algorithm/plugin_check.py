"""What a user's method or stage must be before it is used: a dataclass of the right kind, with hooks that fit."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from typing import Any, TypeVar

from fedhead.core.errors import BadInput

A = TypeVar("A")


def component_class(found: Any, name: str, base: type[A]) -> type[A]:
    """Return a class that was registered or loaded, or refuse it in one line.

    Args:
        found: What has the name.
        name: As the user wrote it.
        base: `Method` or `Stage`.

    Raises:
        BadInput: If it is no subclass of `base`, lacks `@dataclass`, has a field without a default, or overrides a
            hook with other arguments than the engine calls it with.
    """
    kind = base.__name__
    if not isinstance(found, type):
        what = (
            f"one of the class {type(found).__name__}" if isinstance(found, base) else f"of type {type(found).__name__}"
        )
        raise BadInput(f"{name} is {what}, not a class: name a subclass of fedhead.{kind}")
    if not issubclass(found, base):
        raise BadInput(f"{name} is no {kind.lower()}: let {found.__name__} inherit from fedhead.{kind}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise BadInput(f"{name} is abstract: {found.__name__} still has to define {missing}")
    for cls in found.__mro__[: found.__mro__.index(base)]:
        fields = [word for word, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)]
        if fields and "__dataclass_fields__" not in vars(cls):
            raise BadInput(f"{name}: {cls.__name__} has the field {fields[0]!r}: put @dataclass(frozen=True) above it")
    for field in dataclasses.fields(typing.cast(Any, found)):
        if field.init and field.default is field.default_factory is dataclasses.MISSING:
            raise BadInput(f"{name}: the field {field.name!r} of {found.__name__} has no default value: give it one")
    for word, hook in _hooks(base).items():
        _check_hook(found, word, hook, name)
    return found


def _hooks(base: type) -> dict[str, Any]:
    """The functions of the base class that a subclass may override."""
    found = {word: getattr(base, word) for word in dir(base) if not word.startswith("_")}
    return {word: hook for word, hook in found.items() if inspect.isfunction(hook)}


def _check_hook(cls: type, word: str, hook: Any, name: str) -> None:
    own = inspect.getattr_static(cls, word)
    if own is hook:
        return
    if not inspect.isfunction(own):
        if not callable(getattr(cls, word)):
            raise BadInput(f"{name}: {cls.__name__}.{word} is {type(own).__name__}, it must be a function")
        return
    wanted = list(inspect.signature(hook).parameters)
    try:
        inspect.signature(own).bind(*wanted)
    except TypeError:
        taken = ", ".join(inspect.signature(own).parameters)
        raise BadInput(
            f"{name}: {cls.__name__}.{word} takes ({taken}), it is called with ({', '.join(wanted)})"
        ) from None
