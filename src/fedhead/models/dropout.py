"""Dropout whose masks come from a key, so that a loop, a stack of clients and a GPU graph drop the same units."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedhead.core import random
from fedhead.core.errors import BadInput


class _Draw:
    """A key and how many masks were drawn from it."""

    def __init__(self, key: Tensor):
        self.key, self.calls = key, 0


class _Draws(threading.local):
    """The keys in force, the innermost last; each thread has its own, since clients may run in several."""

    def __init__(self) -> None:
        self.open: list[_Draw] = []


_draws = _Draws()


@contextmanager
def drawing(key: Tensor) -> Iterator[None]:
    """Within this context every `Dropout` draws from `key`, the first call of a forward pass from its first stream.

    `key` is one int64 for the whole batch (a scalar tensor), or one a sample ([B]), by which a sample keeps its mask
    whatever batch it stands in. Inside `torch.func.vmap` it may be batched over clients.
    """
    _draws.open.append(_Draw(key))
    try:
        yield
    finally:
        _draws.open.pop()


class Dropout(nn.Module):
    """Zero each unit with probability p in training, and scale the others by 1/(1-p); drawn from `drawing`'s key.

    With `channels` whole channels are zeroed (as `nn.Dropout2d` does): one draw for every entry of the first two axes.
    """

    def __init__(self, p: float = 0.5, channels: bool = False):
        super().__init__()
        if not 0 <= p < 1:
            raise BadInput(f"dropout's probability must be in [0, 1), not {p}")
        self.p = p
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        """The input with some units dropped; in evaluation the input itself."""
        if not self.training or self.p == 0:
            return x
        if not _draws.open:
            raise BadInput("dropout in training has no key: call the model inside fedhead.models.dropout.drawing(key)")
        draw = _draws.open[-1]
        key = random.fold_in(draw.key, draw.calls)
        draw.calls += 1
        if key.dim() and key.shape[0] != x.shape[0]:
            raise BadInput(f"dropout has {key.shape[0]} keys for {x.shape[0]} rows: draw from one key a batch instead")
        shape = x.shape[:2] if self.channels else x.shape
        chance = random.uniform(key, *shape[key.dim() :])
        if self.channels:
            chance = chance.reshape(chance.shape + (1,) * (x.dim() - 2))
        return torch.where(chance < self.p, 0.0, x / (1 - self.p))

    def extra_repr(self) -> str:
        """What the printed module shows of it."""
        return f"p={self.p}" + (", channels=True" if self.channels else "")
