"""Copies of methods and stages whose hooks are checked by themselves whenever they are called."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Replies
from fedhead.algorithm.stage import Stage
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Tree
from fedhead.executors.client.hook_check import checking, given_tensors
from fedhead.testing.checks import require

A = TypeVar("A", bound=Algorithm)
SERVER_HOOKS = ("init_server", "init_client", "per_client", "aggregate", "global_model")
CLIENT_HOOKS = ("start", "correct", "finish", "personal_model", "tuned_model", "predict", "scores")
FIX = "but what a hook receives belongs to others: compute a new tensor, or a new tree with .replace(...)"


def watched(algorithm: A) -> A:
    """Copy an algorithm so that each of its own hooks is checked whenever it is called.

    A hook that changes what it received, keeps something on `self` or its class, or draws from a global generator
    raises an error that names it.
    """
    cls = type(algorithm)
    bases = [base for base in (Algorithm, Method, Stage) if issubclass(cls, base)]
    inherited = {name: [getattr(base, name, None) for base in bases] for name in (*SERVER_HOOKS, *CLIENT_HOOKS)}
    own = [name for name, hooks in inherited.items() if getattr(cls, name, None) not in hooks]
    members: dict[str, Any] = {name: _watched(getattr(cls, name), f"{cls.__name__}.{name}") for name in own}
    members["phases"] = _watched_phases(cls)
    kind = type(cls.__name__, (cls,), {**members, "__module__": cls.__module__, "__qualname__": cls.__qualname__})
    copy: A = object.__new__(kind)
    copy.__dict__.update(vars(algorithm))
    return copy


def _watched(hook: Callable[..., Any], where: str) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(self: Algorithm, *args: Any) -> Any:
        with _watching(where, self, hook, args):
            return hook(self, *args)

    return call


def _watched_phases(cls: type[Algorithm]) -> Callable[..., tuple[Phase, ...]]:
    def phases(self: Algorithm, task: Any) -> tuple[Phase, ...]:
        return tuple(replace(phase, loss=_watched_loss(self, phase)) for phase in cls.phases(self, task))

    return phases


def _watched_loss(algorithm: Algorithm, phase: Phase) -> Callable[..., Tensor]:
    owner = getattr(phase.loss, "__self__", algorithm)
    name = getattr(phase.loss, "__name__", "loss")

    @functools.wraps(phase.loss)
    def call(self: Algorithm, *args: Any) -> Tensor:
        with _watching(f"{type(owner).__name__}.{name}", owner, phase.loss, args):
            return phase.loss(*args)

    return types.MethodType(call, owner)


@contextmanager
def _watching(where: str, owner: Algorithm, hook: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[None]:
    names = [name for name in inspect.signature(hook).parameters if name != "self"]
    given = dict(entry for name, value in zip(names, args, strict=False) for entry in _trees(name, value))
    attributes = _class_attributes(type(owner))
    with checking(where, [owner], given, FIX, None):
        yield
    for name, value in _class_attributes(type(owner)).items():
        kept = attributes.get(name, value) is not value
        require(not kept, f"{where} changes {name}, but a component keeps nothing: keep it in the server's state")


def _trees(path: str, value: Any) -> Iterator[tuple[str, Tree | Tensor]]:
    """Yield the trees and tensors of a hook's argument, by how its code would write them."""
    if isinstance(value, Tree | Tensor):
        yield path, value
    elif isinstance(value, Batch):
        yield from ((f"{path}.{name}", t) for name, t in value._asdict().items() if isinstance(t, Tensor))
    elif isinstance(value, Client):
        yield from given_tensors(value._inputs).items()
    elif isinstance(value, Replies) and value.total is not None:
        yield f"{path}.total", value.total
    elif isinstance(value, Replies):
        yield from ((f"{path}.sent of client {k}", sent) for k, sent in zip(value.clients, value.sent, strict=True))


def _class_attributes(cls: type[Algorithm]) -> dict[str, Any]:
    classes = [kind for kind in reversed(cls.__mro__) if issubclass(kind, Algorithm)]
    return {
        f"{kind.__name__}.{name}": value
        for kind in classes
        for name, value in vars(kind).items()
        if not name.startswith("_")
    }
