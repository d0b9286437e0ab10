"""Functions shared by the kernels: availability, precision, block sizes and the axis of clients."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def available() -> bool:
    """Return whether the compiler of the kernels (Triton) is installed."""
    try:
        import triton  # noqa: F401  (only whether it can be imported)
    except ImportError:
        return False
    return True


def dot_precision() -> str:
    """Return how float32 factors are multiplied: rounded to TF32, or split in three for full float32 accuracy."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def next_power_of_two(count: int, most: int) -> int:
    """Return the next power of two, at least 16 and at most `most`.

    >>> next_power_of_two(3, 64), next_power_of_two(33, 64), next_power_of_two(400, 64)
    (16, 64, 64)
    """
    return max(16, min(most, 1 << (count - 1).bit_length()))


def clients_first(t: Tensor, dim: int | None, clients: int) -> Tensor:
    """Return a tensor with the clients along its first axis, as the rules for `vmap` need it.

    Args:
        t: The tensor.
        dim: The axis of the clients; None: all of them share the tensor.
        clients: How many there are.
    """
    if dim is None:
        return t.expand(clients, *t.shape)
    return t if dim == 0 else t.movedim(dim, 0)
