"""Numbers of the host, copied to a device without waiting for it.

`torch.tensor(numbers, device="cuda")` returns when the copy is done, and the copy begins when the GPU is done with all
that it was told before: in the middle of a round the host would wait for the training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(numbers: NDArray[Any] | Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers as a tensor on a device; a GPU reads them from page-locked memory in the order of its work.

    Args:
        numbers: An array, or a list of numbers or of such lists. On a CPU the tensor shares the memory of an array.
        device: Where the tensor lies.
        dtype: Its dtype; None: that of the array, or torch's for such numbers.

    >>> to_device([1, 2], torch.device("cpu"))
    tensor([1, 2])
    """
    here = torch.from_numpy(numbers) if isinstance(numbers, np.ndarray) else torch.tensor(numbers, dtype=dtype)
    here = here if dtype is None else here.to(dtype)
    if device.type == "cpu":
        return here
    return _page_locked(here).to(device, non_blocking=True)


def _page_locked(t: Tensor) -> Tensor:
    """Return a copy in page-locked memory, made by this thread alone: torch's threads at times took 20 ms to begin."""
    if t.dtype is torch.bfloat16:  # which numpy does not have
        return t.pin_memory()
    locked = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
    np.copyto(locked.numpy(), t.numpy())
    return locked
