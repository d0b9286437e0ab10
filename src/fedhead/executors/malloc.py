"""The heap: keep memory that a step has freed, since the next step asks for it again."""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


@cache
def keep_freed_memory() -> None:
    """Tell the C library to keep freed blocks of up to 256 MiB, and up to 1 GiB of them, for this process.

    By default it hands large blocks back to the kernel, which fills them with zeros again a millisecond later. Where
    there is no such setting (not glibc), nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, 256 << 20)
    mallopt(_TRIM_THRESHOLD, 1 << 30)
