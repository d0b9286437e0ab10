"""Dropout whose masks come from a key, so that a loop, a stack of clients and a CUDA graph drop the same units."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
from torch import Tensor, nn

from fedhead.core import random
from fedhead.core.errors import BadInput
from fedhead.core.parameters import check
from fedhead.core.ranges import AtLeast, Below


class _KeyStream:
    """A key and the number of masks drawn from it."""

    def __init__(self, key: Tensor):
        self.key, self.calls = key, 0


class _ActiveKeys(threading.local):
    """The active keys, the innermost last; per thread, since clients may run in several threads."""

    def __init__(self) -> None:
        self.streams: list[_KeyStream] = []


_active = _ActiveKeys()


@contextmanager
def dropout_key(key: Tensor) -> Iterator[None]:
    """Let every `Dropout` inside this context draw its masks from `key`.

    The n-th dropout call of a forward pass draws from the n-th stream of the key.

    Args:
        key: One int64 for the whole batch (a scalar tensor), or one per sample ([B]), by which a sample keeps its mask
            in any batch. Inside `torch.func.vmap` it may be batched over clients.
    """
    _active.streams.append(_KeyStream(key))
    try:
        yield
    finally:
        _active.streams.pop()


class Dropout(nn.Module):
    """Zero each unit with probability p in training and scale the others by 1/(1-p).

    The masks are drawn from the active `dropout_key`.

    Args:
        p: Probability that a unit is zeroed.
        channels: Whether to zero whole channels, as `nn.Dropout2d` does: one draw per entry of the first two axes.

    Raises:
        BadInput: If p is not in [0, 1).
    """

    def __init__(self, p: float = 0.5, channels: bool = False):
        super().__init__()
        self.p: float = check("Dropout: p", p, Annotated[float, AtLeast(0), Below(1)])
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with some units zeroed; in evaluation mode the input itself."""
        if not self.training or self.p == 0:
            return x
        if not _active.streams:
            raise BadInput("dropout in training has no key: call the model inside models.dropout.dropout_key(key)")
        stream = _active.streams[-1]
        key = random.fold_in(stream.key, stream.calls)
        stream.calls += 1
        if key.dim() and key.shape[0] != x.shape[0]:
            raise BadInput(f"dropout has {key.shape[0]} keys for {x.shape[0]} rows: use one key per batch instead")
        shape = x.shape[:2] if self.channels else x.shape
        chance = random.uniform(key, *shape[key.dim() :])
        if self.channels:
            chance = chance.reshape(chance.shape + (1,) * (x.dim() - 2))
        return torch.where(chance < self.p, 0.0, x / (1 - self.p))

    def extra_repr(self) -> str:
        """Return the settings shown when the module is printed."""
        return f"p={self.p}" + (", channels=True" if self.channels else "")
