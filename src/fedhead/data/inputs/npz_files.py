"""Readers of untrusted .npz and .npy data, which validate headers before allocating memory."""

from __future__ import annotations

import lzma
import math
import os
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, Unreadable, require
from fedhead.core.system.special_files import refuse_special

_LONGEST_HEADER = 10_000  # maximum number of characters of a header
# errors that numpy raises for a damaged header
_DAMAGED = (SyntaxError, TokenError, TypeError, LookupError, OverflowError, RecursionError, MemoryError, EOFError)


def read_npz(path: Path, only: str | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file without running any code in it.

    Args:
        path: The file.
        only: Name of the only array to read, if the file has it; None: all arrays.

    Returns:
        Named arrays.

    Raises:
        BadInput: If the file is missing, damaged, or larger than this machine's memory.
    """
    if not path.exists():
        raise Unreadable(f"{path}: no such file; give the path of an .npz file")
    refuse_special(path)
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"PK":
                raise Unreadable(f"{path}: not an .npz file; write one with numpy.savez")
            with zipfile.ZipFile(file) as archive:
                entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
                size = sum(entry.file_size for entry in entries.values())
                gib = size / 2**30
                require(size <= _memory(), f"{path}: its arrays take {gib:,.0f} GiB, more than this machine's memory")
                wanted = entries if only is None else {name: entries[name] for name in entries if name == only}
                return {name: _member(archive, entry) for name, entry in wanted.items()}
    except MemoryError:
        raise BadInput(f"{path}: its arrays do not fit into memory, or its headers are damaged") from None
    except BadInput:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"{path}: not a readable .npz file ({reason}); write it with numpy.savez") from None


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """Read one array and check that its header matches the size in the archive."""
    with archive.open(entry) as stream:
        shape, fortran, dtype = read_npy_header(stream, entry.file_size)
        raw = stream.read()
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{entry.filename} is cut short")
    flat = np.frombuffer(bytearray(raw), dtype) if raw else np.empty(math.prod(shape), dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def _memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_npy_header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array, and leave the stream at the start of its data.

    Args:
        stream: The whole .npy file.
        size: Size in bytes, which must match the header and the data that it declares.

    Returns:
        Shape, whether the array is in Fortran order, and data type.

    Raises:
        ValueError: If the header is invalid or does not match the size, or the array holds Python objects.
    """
    try:
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"version {version} of numpy's format is unknown")
        # versions 2 and 3 differ only in the encoding of field names, which these arrays don't have
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream, _LONGEST_HEADER)
    except _DAMAGED as error:
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
