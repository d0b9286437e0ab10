"""Undo what users' hooks have changed in a component: its attributes, and what these hold, in place."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedhead.core.tree.tree import Tree

MAX_BYTES = 1 << 24  # of a component's tensors and arrays, copied in milliseconds; more would slow every round
_DICTS, _OTHERS = (dict, defaultdict, OrderedDict, Counter), (list, deque, set)


class Undo:
    """Puts a component's attributes back as they are when this is made.

    Lists, dicts, sets, tensors and arrays are put back in place, since others may hold them too; of tensors and arrays
    those that have room in `MAX_BYTES` together. Other objects, such as modules, generators, files and sparse tensors,
    are not looked into.

    Args:
        part: The component.
    """

    def __init__(self, part: object):
        self._actions: list[Callable[[], object]] = []
        self._seen: set[int] = set()
        self._room = MAX_BYTES
        self._collect(getattr(part, "__dict__", {}))

    def put_back(self) -> None:
        """Undo all changes since this was made."""
        for action in self._actions:  # each is in place and by itself, so their order does not matter
            action()

    def _collect(self, value: Any) -> None:
        kind = type(value)
        if kind in (*_DICTS, *_OTHERS, tuple) or isinstance(value, Tree):
            if id(value) in self._seen:  # it may even hold itself
                return
            self._seen.add(id(value))
            if kind is not tuple:
                self._actions.append(partial(_refill, value, copy.copy(value)))
            for one in value.values() if isinstance(value, dict) else value:
                self._collect(one)
        elif isinstance(value, Tensor) and value.layout is torch.strided and not value.is_inference():
            with suppress(RuntimeError):  # it has escaped from a function of one client, and can't be read
                if self._has_room(value.nbytes):
                    self._actions.append(partial(_write, value, value.detach().clone()))
        elif kind is np.ndarray and value.flags.writeable and self._has_room(value.nbytes):
            self._actions.append(partial(np.copyto, value, value.copy()))

    def _has_room(self, size: int) -> bool:
        fits = size <= self._room
        self._room -= size if fits else 0
        return fits


def _refill(value: Any, held: Any) -> None:
    value.clear()
    (value.update if hasattr(value, "update") else value.extend)(held)


def _write(value: Tensor, held: Tensor) -> None:
    with torch.no_grad(), suppress(RuntimeError):  # it may have got another size
        if not torch.equal(value, held):  # else writing would count as a change
            value.copy_(held)
