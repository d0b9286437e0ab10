"""The pool: samples on the compute device in their stored form, from which batches are made."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from fedhead.core.batch import Batch
from fedhead.data.augment import Transform
from fedhead.data.federation import Samples

MAX_CONVERTED = 1 << 30  # largest size in bytes of images that are held a second time in channels-last format


class Pool:
    """Samples on a device, where batches are gathered, augmented and normalized.

    Args:
        samples: Samples to hold.
        transform: Maps stored samples to model inputs.
        device: Where to hold them.
        dtype: Type of the inputs.
    """

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
        self._converted: Pool | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def device(self) -> torch.device:
        """The device of the samples."""
        return self.x.device

    def with_data(self, x: Tensor, y: Tensor) -> Pool:
        """Return the same pool with other tensors, for tracing."""
        other = copy.copy(self)
        other.x, other.y = x, y
        return other

    def channels_last(self) -> Pool:
        """Return the same pool with images in channels-last format, which is faster for convolutions on a CPU.

        The images are converted once, since converting every batch would take longer than all other work.
        Samples that are not images, and sets too large to be held twice, are left as they are.
        """
        if self.x.dim() != 4 or self.x.nbytes > MAX_CONVERTED:
            return self
        if self._converted is None:
            self._converted = self.with_data(self.x.contiguous(memory_format=torch.channels_last), self.y)
        return self._converted

    def batch(self, index: Tensor, weight: Tensor, key: Tensor | None = None) -> Batch:
        """Create a batch.

        Args:
            index: Rows of the samples, [B] or [clients, B].
            weight: Weights of the samples, likewise.
            key: Random keys, likewise; None for no augmentation.
        """
        x = self.view(index.reshape(-1), None if key is None else key.reshape(-1))
        keys = torch.zeros_like(index) if key is None else key
        return Batch(x.reshape(*index.shape, *x.shape[1:]), self.y[index], weight.to(self.dtype), index, keys)

    def view(self, index: Tensor, key: Tensor | None) -> Tensor:
        """Return the inputs of rows `index` [B], augmented with `key` [B] if it is given."""
        x = self.transform(self._select(index), key)
        return x.to(self.dtype) if x.is_floating_point() else x  # tokens stay integers

    def _select(self, index: Tensor) -> Tensor:
        """Return the stored samples of rows `index`."""
        if self.device.type != "cpu":
            return self.x[index]
        # On a CPU indexing copies single numbers, while index_select copies whole rows if they are contiguous.
        if self.x.is_contiguous() or self.x.dim() != 4:
            return self.x.index_select(0, index)
        return self.x.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
