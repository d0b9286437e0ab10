"""Configuration of the C library's memory allocator."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)


def tune_malloc() -> bool:
    """Keep freed memory in the process: blocks of up to 256 MiB, and up to 1 GiB in total. Speeds up training on a CPU.

    By default the C library returns large blocks to the kernel, which has to clear them when they are allocated again.
    The setting affects the whole process and can't be undone, so only the command line uses it, not `fedhead.run`.

    Returns:
        False if the C library is not glibc (macOS, Windows, musl).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 256 << 20)) and bool(mallopt(_TRIM_THRESHOLD, 1 << 30))


def hand_back_memory() -> None:
    """Return freed memory to the kernel, also between blocks in use.

    Prevents fragmentation by large short-lived tensors between small long-lived ones.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # the C library is not glibc
        return
