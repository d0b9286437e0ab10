"""Asynchronous copies from the host to a device.

`torch.tensor(numbers, device="cuda")` waits for the copy, and the copy waits for all queued work of the GPU. In the
middle of a round, the host would wait for the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(numbers: NDArray[Any] | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy numbers to a device asynchronously, through pinned memory.

    Args:
        numbers: Array, or (nested) list of numbers. On a CPU the tensor shares the memory of an array.
        device: Target device.
        dtype: Target dtype; None: that of the array, or torch's default.

    >>> to_device([1, 2], torch.device("cpu"))
    tensor([1, 2])
    """
    host = torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else torch.tensor(numbers, dtype=dtype)
    host = host if dtype is None else host.to(dtype)
    if device.type == "cpu":
        return host
    return _page_locked(host).to(device, non_blocking=True)


def _page_locked(t: Tensor) -> Tensor:
    """Copy to pinned memory in this thread: torch's threads sometimes took 20 ms to start."""
    if t.dtype is torch.bfloat16:  # not supported by numpy
        return t.pin_memory()
    locked = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
    np.copyto(locked.numpy(), t.numpy())
    return locked
