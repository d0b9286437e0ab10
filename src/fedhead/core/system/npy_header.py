"""The header of numpy's .npy format, read without trusting it: what it claims is checked before it is allocated."""

from __future__ import annotations

import math
from tokenize import TokenError
from typing import IO, Any

import numpy as np

_MOST = 10_000  # characters of a header


def read_npy_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array, and leave the stream where its numbers begin.

    Args:
        stream: The whole .npy file.
        size: Its size in bytes, which must be that of the header and of the numbers that it claims.

    Returns:
        The array's shape, whether it is in Fortran's order, and its type.

    Raises:
        ValueError: If it is no header, claims more or less than is there, or the array holds Python objects.
    """
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version} of numpy's format is unknown")
        # the last two differ in the encoding of field names, which arrays of numbers and words have none of
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream, _MOST)
    except (
        SyntaxError,
        TokenError,
        TypeError,
        LookupError,
        OverflowError,
        RecursionError,
        MemoryError,
        EOFError,
    ) as error:
        raise ValueError(f"the header of an array is damaged ({type(error).__name__})") from None
    if dtype.hasobject:
        raise ValueError("an array holds Python objects, which could run code")
    if any(side < 0 for side in shape) or len(shape) > 32:
        raise ValueError(f"an array claims the shape {str(shape)[:60]}")
    if math.prod(shape) * dtype.itemsize != size - stream.tell():
        raise ValueError(
            f"an array claims the shape {str(shape)[:60]} of {dtype}, but has {size - stream.tell()} bytes"
        )
    return shape, fortran, dtype
