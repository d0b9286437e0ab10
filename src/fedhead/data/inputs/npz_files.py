"""Reader of .npz files that runs no code in them."""

from __future__ import annotations

import lzma
import os
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, Unreadable, require
from fedhead.core.system.special_files import refuse_special

# errors that zipfile and numpy raise for a damaged file
_DAMAGED = (
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    TokenError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file.

    Args:
        path: The file.

    Returns:
        Named arrays.

    Raises:
        BadInput: If the file is missing, damaged, or larger than this machine's memory.
    """
    require(path.exists(), f"{path}: no such file; give the path of an .npz file")
    refuse_special(path)
    try:
        with zipfile.ZipFile(path) as archive:
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if sum(entry.file_size for entry in archive.infolist()) > memory:
                raise MemoryError  # the kernel would kill the process
            return {name.removesuffix(".npy"): _member(archive, name) for name in archive.namelist()}
    except MemoryError:
        raise BadInput(
            f"{path}: its arrays do not fit into memory, or its headers are damaged: write it again with fewer samples"
        ) from None
    except _DAMAGED as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"{path}: not a readable .npz file ({reason}); write it with numpy.savez") from None


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with archive.open(name) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        if stream.read(1):  # at the end of the file, this verifies its CRC
            raise ValueError(f"{name} is longer than its header says")
        return array
