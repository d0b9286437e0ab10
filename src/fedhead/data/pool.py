"""The pool: samples that live on the compute device as they are stored, and leave it as ready batches."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fedhead.data.augment import Transform
from fedhead.data.federation import Samples
from fedhead.types import Batch


class Pool:
    """Samples on a device; batches are gathered, augmented and normalised there."""

    def __init__(
        self,
        samples: Samples,
        transform: Transform,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.x = samples.x.to(device)
        self.y = samples.y.to(device)
        self.transform = transform
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.y)

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.x.device

    def holding(self, x: Tensor, y: Tensor) -> Pool:
        """The same pool with other tensors in place of its own, for tracing."""
        other = copy.copy(self)
        other.x, other.y = x, y
        return other

    def batch(self, index: Tensor, weight: Tensor, key: Tensor | None = None) -> Batch:
        """The samples of these rows, [B] or [clients, B]; without a key nothing is augmented."""
        x = self.view(index.reshape(-1), None if key is None else key.reshape(-1))
        keys = torch.zeros_like(index) if key is None else key
        return Batch(x.reshape(*index.shape, *x.shape[1:]), self.y[index], weight.to(self.dtype), index, keys)

    def view(self, index: Tensor, key: Tensor | None) -> Tensor:
        """The inputs of these rows, [B]."""
        return self.transform(self.x[index], key).to(self.dtype)
