"""What the kernels have in common: whether there are any, how exact they are, how large their blocks."""

from __future__ import annotations

from functools import cache

import torch


@cache
def available() -> bool:
    """Whether the compiler of the kernels is installed."""
    try:
        import triton  # noqa: F401  (only whether it can be imported)
    except ImportError:
        return False
    return True


def exactness() -> str:
    """How float32 factors are multiplied: rounded to TF32, or split in three for float32's own accuracy."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


def power(count: int, most: int) -> int:
    """The next power of two, from 16 up to `most`.

    >>> power(3, 64), power(33, 64), power(400, 64)
    (16, 64, 64)
    """
    return max(16, min(most, 1 << (count - 1).bit_length()))
