"""Dropout with masks drawn by key, so that a loop, a stack of clients and a CUDA graph drop the same units.

`nn.Dropout` layers are replaced by `Dropout` when a model is split or built. Calls of `F.dropout` in a user's `forward`
are redirected (`KeyedDropout`) for models with user-defined modules.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedhead.core.components.parameters import check
from fedhead.core.components.ranges import AtLeast, Below
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.models.layers import is_user_defined


class _KeyStream:
    """Key and number of masks drawn from it."""

    def __init__(self, key: Tensor):
        self.key, self.calls = key, 0


class _ActiveKeys(threading.local):
    """Thread-local stack of active keys, since clients may run in several threads."""

    def __init__(self) -> None:
        self.streams: list[_KeyStream] = []


_active = _ActiveKeys()


@contextmanager
def dropout_key(key: Tensor) -> Iterator[None]:
    """Draw the masks of every `Dropout` in this context from `key`.

    The n-th dropout call of a forward pass draws from the n-th stream of the key.

    Args:
        key: One int64 for the whole batch (a scalar tensor), or one per sample ([B]), so that a sample's mask does not
            depend on its batch. Inside `torch.func.vmap` it may be batched over clients.
    """
    _active.streams.append(_KeyStream(key))
    try:
        yield
    finally:
        _active.streams.pop()


class Dropout(nn.Module):
    """Dropout layer: zeroes each unit with probability p in training and scales the others by 1/(1-p).

    The masks are drawn from the active `dropout_key`.

    Args:
        p: Probability that a unit is zeroed.
        channels: Whether to zero whole channels, as in `nn.Dropout2d`: one draw per entry of the first two axes.

    Raises:
        BadInput: If p is not in [0, 1).
    """

    def __init__(self, p: float = 0.5, channels: bool = False):
        super().__init__()
        self.p: float = check("Dropout: p", p, Annotated[float, AtLeast(0), Below(1)])
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with some units zeroed; in evaluation mode the unchanged input."""
        if not self.training or self.p == 0:
            return x
        if not _active.streams:
            raise BadInput("dropout in training has no key: call the model inside models.dropout.dropout_key(key)")
        return _drop(x, self.p, self.channels)


def _drop(x: Tensor, p: float, channels: bool) -> Tensor:
    """Zero units or channels with the next mask of the active key."""
    stream = _active.streams[-1]
    key = random.fold_in(stream.key, stream.calls)
    stream.calls += 1
    if key.dim() and key.shape[0] != x.shape[0]:
        raise BadInput(f"dropout has {key.shape[0]} keys for {x.shape[0]} rows: use one key per batch instead")
    shape = x.shape[:2] if channels else x.shape
    chance = random.uniform(key, *shape[key.dim() :])
    if channels:
        chance = chance.reshape(chance.shape + (1,) * (x.dim() - 2))
    return torch.where(chance < p, 0.0, x / (1 - p))


# Dropout functions, and whether they zero whole channels.
_FUNCTIONS: dict[Any, bool] = {F.dropout: False, F.dropout1d: True, F.dropout2d: True, F.dropout3d: True}


class KeyedDropout(TorchFunctionMode):
    """Context manager that makes `F.dropout` and its variants draw from the active `dropout_key`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Redirect dropout in training; call other functions unchanged."""
        kwargs = kwargs or {}
        if func not in _FUNCTIONS or not _active.streams:
            return func(*args, **kwargs)
        return self._redirected(_FUNCTIONS[func], *args, **kwargs)

    def _redirected(
        self, channels: bool, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Apply keyed dropout with the arguments of `F.dropout`; ignores `inplace`."""
        check("F.dropout: p", p, Annotated[float, AtLeast(0), Below(1)])
        if not training or p == 0:
            return input
        return _drop(input, p, channels)


def may_call_dropout(model: nn.Module) -> bool:
    """Return whether a model may call `F.dropout`: it has user-defined modules."""
    return any(map(is_user_defined, model.modules()))
