"""The pool: samples that live on the compute device as they are stored, and leave it as ready batches."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fedhead.core.batch import Batch
from fedhead.data.augment import Transform
from fedhead.data.federation import Samples

LARGEST_TURNED = 1 << 30  # bytes of images that may be held a second time in another order


class Pool:
    """Samples on a device; batches are gathered, augmented and normalized there."""

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
        self._turned: Pool | None = None

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

    def channels_last(self) -> Pool:
        """The same pool with the channels of its images innermost, as convolutions like them; turned once and kept.

        Turning every batch anew takes longer than all else that a batch needs. What is no image stays as it is, and so
        does a set that is too large to be held twice.
        """
        if self.x.dim() != 4 or self.x.nbytes > LARGEST_TURNED:
            return self
        if self._turned is None:
            self._turned = self.holding(self.x.contiguous(memory_format=torch.channels_last), self.y)
        return self._turned

    def batch(self, index: Tensor, weight: Tensor, key: Tensor | None = None) -> Batch:
        """The samples of these rows, [B] or [clients, B]; without a key nothing is augmented."""
        x = self.view(index.reshape(-1), None if key is None else key.reshape(-1))
        keys = torch.zeros_like(index) if key is None else key
        return Batch(x.reshape(*index.shape, *x.shape[1:]), self.y[index], weight.to(self.dtype), index, keys)

    def view(self, index: Tensor, key: Tensor | None) -> Tensor:
        """The inputs of these rows, [B]."""
        return self.transform(self._taken(index), key).to(self.dtype)

    def _taken(self, index: Tensor) -> Tensor:
        """The stored rows of this index."""
        if self.device.type != "cpu":
            return self.x[index]
        # On a CPU indexing goes number by number, while index_select copies rows, if they lie in one piece.
        if self.x.is_contiguous() or self.x.dim() != 4:
            return self.x.index_select(0, index)
        return self.x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
