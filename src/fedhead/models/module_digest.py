"""Digest of a module's weights, code and attributes."""

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

# attributes to skip: those of every `nn.Module` (its layers, tensors and hooks are hashed separately), and the cache of
# functional calls
_INTERNAL = frozenset(vars(nn.Module())) | {KEPT_AS}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_DEEPEST = 6  # maximum depth of nested attributes
_ADDRESS = " at 0x"  # part of the default `repr` of objects


def module_digest(module: nn.Module, weights: bool = True, known: frozenset[int] = frozenset()) -> str:
    """Return a digest of a module's layers, weights, buffers, attributes and code.

    Code means the methods of each layer's class and the file that defines the class. Functions from other files are not
    included.

    Args:
        module: The module.
        weights: Whether to include the tensors of the state dict.
        known: The `id` of modules that are already included, so that references to them are skipped.

    >>> module_digest(nn.Flatten(1)) == module_digest(nn.Flatten(2))
    False
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if not weights:
        saved = module.state_dict(keep_vars=True)
        tensors = {name: t for name, t in tensors.items() if name not in saved}
    total = hashlib.blake2b(f"{module!r} {digest_of(tensors, 16)}".encode(), digest_size=16)
    classes: set[type] = set()
    known = known.union(map(id, module.modules()))
    for name, part in module.named_modules():
        attributes = {key: value for key, value in vars(part).items() if key not in _INTERNAL}
        hooks = [list(vars(part)[kind].values()) for kind in _HOOKS]
        total.update("\n".join([name, *_described(attributes, known), *_described(hooks, known)]).encode())
        classes.update(kind for kind in type(part).__mro__ if not _of_torch(kind))
    for kind in sorted(classes, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}"):
        total.update("\n".join([f"{kind.__module__}.{kind.__qualname__}", _file(kind), *_methods(kind)]).encode())
    return total.hexdigest()


def value_digest(value: object) -> str:
    """Return a digest of a value of any type; for a function, of its code and captured variables.

    The attributes of an object count, without cached properties, which exist only after their first use.

    Args:
        value: Value to hash.
    """
    return digest_text("\n".join(_described(value)), 16)


def _of_torch(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("torch", "builtins")


def _file(kind: type) -> str:
    """Return a digest of the file that defines a class, "" if it has none."""
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
    """Yield texts that identify a value, without memory addresses."""
    yield f"{type(value).__module__}.{type(value).__qualname__}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        yield repr(value)
    elif isinstance(value, Tensor):
        yield digest_of({"": value}, 16)
    elif isinstance(value, np.ndarray | np.generic) and not np.asarray(value).dtype.hasobject:
        yield f"{value.dtype} {value.shape} {hashlib.blake2b(value.tobytes(), digest_size=16).hexdigest()}"
    elif isinstance(value, nn.Module):  # such as a method's teacher model
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
        for key, item in sorted(value.items(), key=lambda item: str(item[0])):
            yield str(key)
            yield from _described(item, known, depth + 1)
    elif isinstance(value, set | frozenset):
        yield from sorted(" ".join(_described(item, known, depth + 1)) for item in value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _described(item, known, depth + 1)
    elif callable(value) and hasattr(value, "__qualname__"):  # a class, or a function in C
        yield f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    elif hasattr(value, "__dict__"):
        kind = type(value)
        cached = {name for name in vars(value) if isinstance(getattr(kind, name, None), functools.cached_property)}
        yield from _described({k: v for k, v in vars(value).items() if k not in cached}, known, depth + 1)
    elif _ADDRESS not in (text := repr(value)):
        yield text
