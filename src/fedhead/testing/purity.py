"""Looking over a hook's shoulder: what it was given, what it keeps, what it draws and what it returns."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Phase, Replies, Reply
from fedhead.algorithm.stage import Stage
from fedhead.core.training import global_generators
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Tree, Weights
from fedhead.testing.checks import CheckFailed

A = TypeVar("A", bound=Algorithm)
TREES = ("init_server", "init_client", "per_client", "aggregate", "correct")  # hooks that return a tree
HOOKS = (*TREES, "start", "finish", "global_model", "personal_model", "tuned_model", "predict", "scores")


def watched(algorithm: A) -> A:
    """Copy an algorithm so that each of its own hooks is checked whenever it is called.

    A hook that changes what it received, keeps something on `self`, draws from a global generator or returns something
    else than named tensors raises `CheckFailed`.
    """
    cls = type(algorithm)
    own = [name for name in HOOKS if getattr(cls, name, None) not in [getattr(b, name, None) for b in _bases(cls)]]
    members: dict[str, Any] = {name: _watched(getattr(cls, name), f"{cls.__name__}.{name}", name) for name in own}
    members["phases"] = _watched_phases(cls)
    kind = type(cls.__name__, (cls,), {**members, "__module__": cls.__module__, "__qualname__": cls.__qualname__})
    copy: A = object.__new__(kind)
    copy.__dict__.update(vars(algorithm))
    return copy


def _bases(cls: type[Algorithm]) -> list[type[Algorithm]]:
    return [base for base in (Algorithm, Method, Stage) if issubclass(cls, base)]


def _watched(hook: Callable[..., Any], where: str, name: str) -> Callable[..., Any]:
    @functools.wraps(hook)
    def call(self: Algorithm, *args: Any) -> Any:
        with _watching(where, self, hook, args):
            out = hook(self, *args)
        _check_output(where, name, out)
        return out

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


# -- what goes in -------------------------------------------------------------------------------------
@contextmanager
def _watching(where: str, owner: Algorithm, hook: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[None]:
    names = [name for name in inspect.signature(hook).parameters if name != "self"]
    before = _copies(names, args)
    kept, generators = _kept(owner), global_generators.states()
    yield
    for name, value in _copies(names, args).items():
        if name not in before:
            raise CheckFailed(f"{where} adds {name}: return a new tree instead, with .replace(...)")
        if not _equal(before.pop(name), value):
            raise CheckFailed(
                f"{where} changes {name} in place: what a hook receives belongs to others; compute a new tensor"
            )
    for name in before:
        raise CheckFailed(f"{where} removes {name}: return a new tree instead, with .without(...)")
    for name, value in _kept(owner).items():
        if kept.get(name) != value:
            raise CheckFailed(
                f"{where} keeps {name!r} on self: a method has no state; let finish keep it in the "
                f"client's state, or aggregate in the server's"
            )
    for name, state in global_generators.states().items():
        if state != generators[name]:
            raise CheckFailed(
                f"{where} draws from {name}'s global generator: clients would draw other numbers on each executor; "
                f"draw by key, fh.random.uniform(batch.key)"
            )


def _copies(names: list[str], args: tuple[Any, ...]) -> dict[str, Tensor]:
    """Copies of all tensors among a hook's arguments, by how its code would write them."""
    found: dict[str, Tensor] = {}
    for name, value in zip(names, args, strict=False):
        found.update({path: t.detach().clone() for path, t in _tensors(name, value)})
    return found


def _tensors(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _tensors(f"{path}[{name!r}]", inner)
    elif isinstance(value, Batch):
        for name, inner in value._asdict().items():
            yield f"{path}.{name}", inner
    elif isinstance(value, Client):
        for name in ("received", "state", "counts", "steps", "lr", "round"):
            yield from _tensors(f"{path}.{name}", getattr(value, name))
    elif isinstance(value, Replies):
        if value.total is not None:
            yield from _tensors(f"{path}.total", value.total)
            return
        for k, sent in zip(value.clients, value.sent, strict=True):
            yield from _tensors(f"{path}.sent of client {k}", sent)


def _kept(owner: Algorithm) -> dict[str, Any]:
    """The attributes of an algorithm and of its classes, in a form that shows any change."""
    kept = {name: _print(value) for name, value in vars(owner).items()}
    for cls in reversed(type(owner).__mro__[: type(owner).__mro__.index(_bases(type(owner))[-1])]):
        kept |= {
            f"{cls.__name__}.{name}": _print(value) for name, value in vars(cls).items() if not name.startswith("__")
        }
    return kept


def _print(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _print(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [_print(inner) for inner in value]
    return repr(value)


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


# -- what comes out -----------------------------------------------------------------------------------
def _check_output(where: str, name: str, out: Any) -> None:
    if name in TREES:
        check_tree(f"{where} returns", out)
    elif name == "start" and not isinstance(out, Weights):
        raise CheckFailed(f"{where} returns a {type(out).__name__}: return the fh.Weights that training starts from")
    elif name == "finish":
        if not isinstance(out, Reply):
            raise CheckFailed(f"{where} returns a {type(out).__name__}: return fh.Reply(send=..., keep=...)")
        check_tree(f"{where} sends", out.send)
        check_tree(f"{where} keeps", out.keep)


def check_tree(where: str, value: Any, path: str = "") -> None:
    """Raise `CheckFailed` for anything that is no tree of named tensors.

    Args:
        where: Whose tree it is, the beginning of the message.
        value: What should be a tree.
        path: Its own name inside another tree.
    """
    name = path or "it"
    if not isinstance(value, Tree):
        raise CheckFailed(f"{where} {_what(value)}{f' as {path}' if path else ''}: use fh.Tree(name=tensor, ...)")
    for key, inner in value.items():
        if not isinstance(key, str) or "/" in key:
            raise CheckFailed(f"{where} {key!r} as a name in {name}: names are texts without '/'")
        full = f"{path}[{key!r}]"
        if isinstance(inner, Tensor):
            if inner.requires_grad:
                raise CheckFailed(f"{where} {full} with its gradient: call .detach() on it")
        elif isinstance(inner, Tree):
            check_tree(where, inner, full)
        else:
            raise CheckFailed(
                f"{where} {full}, {_what(inner)}: everything that is sent or kept is a tensor, such as "
                f"torch.tensor(...) or client.samples"
            )


def _what(value: Any) -> str:
    return f"{'an' if type(value).__name__[0] in 'aeiou' else 'a'} {type(value).__name__}"
