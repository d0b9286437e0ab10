"""Settings of the C library's memory allocator."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def tune_malloc() -> bool:
    """Make this process keep freed blocks of up to 256 MiB, and up to 1 GiB of them, for training on the CPU.

    By default the C library hands large blocks back to the kernel, which fills them with zeros again a millisecond
    later. The setting concerns the whole process and can't be undone, so `fedhead.run` leaves it alone; the command
    line makes it for its own process.

    Returns:
        Whether the setting was made: False where the C library is not glibc (macOS, Windows, musl).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, 256 << 20)) and bool(mallopt(_TRIM_THRESHOLD, 1 << 30))


def hand_back_memory() -> None:
    """Hand freed blocks back to the kernel, where small ones that are still in use lie between them.

    Large tensors that come and go beside small ones that stay would otherwise leave more and more gaps.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):  # the C library is not glibc
        return
