"""Pool of stored samples on the compute device, which builds batches."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedhead.core.training import random
from fedhead.core.training.batch import Batch
from fedhead.core.tree.inputs import Inputs, channels_last, map_inputs, tensors_of, to_dtype
from fedhead.data.identity_cache import IdentityCache
from fedhead.data.inputs.arrays import Samples
from fedhead.data.transforms.named_transforms import AnyTransform

KEPT_TABLES = 4  # number of cached tables, such as one per architecture, or for training and testing
MAX_CONVERTED = 1 << 30  # maximum size in bytes of images that are copied to channels-last format


@dataclass(frozen=True)
class ViewsAhead:
    """Precomputed views of a batch's samples.

    Args:
        indices: Indices of the batch.
        key: Random keys of the batch.
        views: Views keyed by view number.
        asked: Set to which the number of each requested view is added.
    """

    indices: Tensor
    key: Tensor
    views: Mapping[int, Inputs]
    asked: set[int]


class Pool:
    """Samples on a device, where batches are gathered, augmented and normalized.

    Args:
        samples: Samples to store.
        transform: Maps stored samples to model inputs.
        device: Device of the samples.
        dtype: Type of the inputs.

    Attributes:
        index_tables: Cache of the latest index tables of clients on the device, keyed by their arrays.
    """

    def __init__(
        self,
        samples: Samples,
        transform: AnyTransform,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.x: Inputs = map_inputs(lambda t: t.to(device), samples.x)
        self.y = samples.y.to(device)
        if self.y.is_floating_point():  # targets other than classes
            self.y = self.y.to(dtype)
        self.transform = transform
        self.dtype = dtype
        self._converted: Pool | None = None
        self._ahead: ViewsAhead | None = None
        # cache shared with derived pools of the same device and dtype
        self.index_tables: IdentityCache[tuple[Tensor, Tensor]] = IdentityCache(KEPT_TABLES)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def device(self) -> torch.device:
        """Device of the samples."""
        return self.y.device

    @property
    def sample_nbytes(self) -> int:
        """Size in bytes of one transformed sample; 0 for an empty pool."""
        if not len(self):
            return 0
        return sum(t.nbytes for t in tensors_of(self.view(torch.zeros(1, dtype=torch.int64, device=self.device), None)))

    def with_data(self, x: Inputs, y: Tensor) -> Pool:
        """Return a copy with other tensors, for tracing."""
        other = copy.copy(self)
        other.x, other.y = x, y
        return other

    def holding(self, views: ViewsAhead) -> Pool:
        """Return a copy with precomputed views."""
        other = copy.copy(self)
        other._ahead = views
        return other

    def take(self, indices: Tensor) -> Pool:
        """Return a pool of some of the samples, in this order.

        Args:
            indices: Indices of the samples, on the pool's device.
        """
        other = self.with_data(map_inputs(lambda t: _select(t, indices), self.x), self.y[indices])
        other._converted = None
        return other

    def channels_last(self) -> Pool:
        """Return a copy with images in channels-last format, which is faster for convolutions on a CPU.

        The images are converted once, since converting every batch would be too slow. Other samples, and images too
        large to be stored twice, are unchanged.
        """
        images = [t for t in tensors_of(self.x) if t.dim() == 4]
        if not images or sum(t.nbytes for t in images) > MAX_CONVERTED:
            return self
        if self._converted is None:
            self._converted = self.with_data(map_inputs(channels_last, self.x), self.y)
        return self._converted

    def batch(self, index: Tensor, weight: Tensor, key: Tensor | None = None) -> Batch:
        """Create a batch.

        Args:
            index: Rows of the samples, [B] or [clients, B].
            weight: Weights of the samples, in the same shape.
            key: Random keys, in the same shape; None: no augmentation.
        """
        x = self.view(index.reshape(-1), None if key is None else key.reshape(-1))
        keys = torch.zeros_like(index) if key is None else key
        x = map_inputs(lambda t: t.reshape(*index.shape, *t.shape[1:]), x)
        return Batch(x, self.y[index], weight.to(self.dtype), index, keys)

    def view(self, index: Tensor, key: Tensor | None) -> Any:
        """Return the inputs of the samples `index` [B], augmented with `key` [B] if it is given."""
        return to_dtype(self.transform(map_inputs(lambda t: _select(t, index), self.x), key), self.dtype)

    def another_view(self, index: Tensor, key: Tensor, number: int) -> Any:
        """Return another view of samples drawn with `key`, precomputed if available.

        Args:
            index: Rows of the samples, [B].
            key: Their random keys, [B].
            number: Number of the view; each number gives another augmentation.
        """
        ahead = self._ahead
        if ahead is not None and index is ahead.indices and key is ahead.key:  # the request is for the whole batch
            ahead.asked.add(number)
            if number in ahead.views:
                return ahead.views[number]
        return self.view(index, random.fold_in(key, number))


def _select(t: Tensor, index: Tensor) -> Tensor:
    """Return the stored samples `index`."""
    if t.device.type != "cpu":
        return t[index]
    # On a CPU indexing copies single numbers, while index_select copies whole rows if they are contiguous.
    if t.is_contiguous() or t.dim() != 4:
        return t.index_select(0, index)
    return t.permute(0, 2, 3, 1).index_select(0, index).permute(0, 3, 1, 2)
