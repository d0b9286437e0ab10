"""A digest of everything that decides what a module computes: its weights, its code and its settings."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedhead.core.tree.digest import digest_of, digest_text
from fedhead.models.functional import KEPT_AS

# what every module has: parts that are looked at by themselves, and flags; and what a module that was called has
_INTERNAL = frozenset(vars(nn.Module())) | {KEPT_AS}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_DEEPEST = 6  # of settings within settings
_ADDRESS = " at 0x"  # in the printed form of objects whose class does not define one


def module_digest(module: nn.Module, weights: bool = True, known: frozenset[int] = frozenset()) -> str:
    """Return a digest of a module's layers, weights, buffers, settings and code.

    Code is that of the methods of each layer's class and the file that the class is defined in. What is in no file of a
    layer, such as a function that another file defines, is not looked at.

    Args:
        module: The module.
        weights: Whether what is in its state dict counts.
        known: The `id` of modules that are looked at elsewhere, and not again where a setting refers to them.

    >>> module_digest(nn.Flatten(1)) == module_digest(nn.Flatten(2))
    False
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if not weights:
        held = module.state_dict(keep_vars=True)
        tensors = {name: t for name, t in tensors.items() if name not in held}
    total = hashlib.blake2b(f"{module!r} {digest_of(tensors, 16)}".encode(), digest_size=16)
    classes: set[type] = set()
    known = known.union(map(id, module.modules()))
    for name, part in module.named_modules():
        settings = {key: value for key, value in vars(part).items() if key not in _INTERNAL}
        hooks = [list(vars(part)[kind].values()) for kind in _HOOKS]
        total.update("\n".join([name, *_described(settings, known), *_described(hooks, known)]).encode())
        classes.update(kind for kind in type(part).__mro__ if not _of_torch(kind))
    for kind in sorted(classes, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}"):
        total.update("\n".join([f"{kind.__module__}.{kind.__qualname__}", _file(kind), *_methods(kind)]).encode())
    return total.hexdigest()


def settings_digest(part: object) -> str:
    """Return a digest of an object's class and of all its attributes, also those that its printed form leaves out.

    Args:
        part: The object, such as a method.
    """
    kind = type(part)
    # a cached property follows from the other attributes, and is there only after its first use
    own = {k: v for k, v in vars(part).items() if not isinstance(getattr(kind, k, None), functools.cached_property)}
    texts = [f"{kind.__module__} {part!r}", *_described(own)]
    return digest_text("\n".join(texts), 16)


def value_digest(value: object) -> str:
    """Return a digest of a setting of any type; of a function its code and what it captures.

    Args:
        value: The setting.
    """
    return digest_text("\n".join(_described(value)), 16)


def _of_torch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("torch", "builtins")


def _file(kind: type) -> str:
    """Return a digest of the file that a class is defined in, "" where there is none."""
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest() if path else ""
    except OSError:  # in an archive
        return ""


def _methods(kind: type) -> Iterator[str]:
    for name, value in sorted(vars(kind).items()):
        if isinstance(value, FunctionType):
            yield name
            yield from _code(value.__code__)


def _code(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield from _described(constant)


def _described(value: Any, known: frozenset[int] = frozenset(), depth: int = 0) -> Iterator[str]:
    """Yield texts that differ where settings do, without the addresses of objects."""
    yield type(value).__qualname__
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        yield repr(value)
    elif isinstance(value, Tensor):
        yield digest_of({"": value}, 16)
    elif isinstance(value, np.ndarray | np.generic) and not np.asarray(value).dtype.hasobject:
        yield f"{value.dtype} {value.shape} {hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()}"
    elif isinstance(value, nn.Module):  # such as a teacher that a method holds
        if id(value) not in known:
            yield module_digest(value, known=known)
    elif depth >= _DEEPEST:
        return
    elif isinstance(value, FunctionType):
        yield from _code(value.__code__)
        bound = inspect.getclosurevars(value).nonlocals
        yield from _described([value.__defaults__, value.__kwdefaults__, bound], known, depth + 1)
    elif isinstance(value, MethodType):
        yield from _described([value.__func__, value.__self__], known, depth + 1)
    elif isinstance(value, functools.partial):
        yield from _described([value.func, value.args, value.keywords], known, depth + 1)
    elif isinstance(value, Mapping):
        for key, one in sorted(value.items(), key=lambda item: str(item[0])):
            yield str(key)
            yield from _described(one, known, depth + 1)
    elif isinstance(value, set | frozenset):
        yield from sorted(" ".join(_described(one, known, depth + 1)) for one in value)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _described(one, known, depth + 1)
    elif callable(value) and hasattr(value, "__qualname__"):  # a class, or a function in C
        yield f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    elif hasattr(value, "__dict__"):
        yield from _described(vars(value), known, depth + 1)
    elif _ADDRESS not in (text := repr(value)):
        yield text
