"""File formats of the standard data sets: CIFAR's pickles, idx and idx.gz."""

from __future__ import annotations

import gzip
import hashlib
import math
import pickle
import warnings
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.special_files import refuse_special

_UNPACKED = 1 << 31  # maximum size of an unpacked file in bytes


def read_bytes(path: Path, md5: str | None = None) -> bytes:
    """Read a file, decompressed if it is gzipped, and check the md5 of its contents."""
    refuse_special(path)
    try:
        whole = path.read_bytes()
        if whole[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                whole = file.read(_UNPACKED + 1)
            require(len(whole) <= _UNPACKED, f"{path}: over {_UNPACKED >> 30} GiB when unpacked, it is no data set")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path}: truncated or corrupt ({error}); delete it and fetch it again") from None
    except OSError as error:
        raise BadInput(f"{path}: can't be read ({error.strerror or error})") from None
    require(
        md5 is None or hashlib.md5(whole, usedforsecurity=False).hexdigest() == md5,
        f"{path}: its checksum is not the published {md5}: truncated or altered; delete and fetch it again",
    )
    return whole


def cifar_batch(path: Path, label: bytes, md5: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images [N, 3, 32, 32] and labels of one CIFAR batch.

    Args:
        path: A pickle of the Python version of CIFAR-10 or CIFAR-100.
        label: Key of the labels in it.
        md5: Published checksum. Loading a pickle can run any code, so only the published files are loaded.

    Raises:
        BadInput: If the file can't be read, or is not the published one.
    """
    whole = read_bytes(path, md5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's warning about dtypes pickled by old releases
        batch = pickle.loads(whole, encoding="bytes")
    return batch[b"data"].reshape(-1, 3, 32, 32), np.asarray(batch[label], np.int64)


def idx(path: Path, md5: str | None = None) -> NDArray[np.uint8]:
    """Read the array of bytes in an idx or idx.gz file."""
    whole = read_bytes(path, md5)
    require(
        not (len(whole) < 4 or whole[:3] != b"\x00\x00\x08" or whole[3] > 4 or (len(whole) < 4 + 4 * whole[3])),
        f"{path}: not an idx file of bytes",
    )
    shape = [int(side) for side in np.frombuffer(whole, ">i4", count=whole[3], offset=4)]
    start = 4 + 4 * whole[3]
    require(
        len(whole) - start == math.prod(shape) and (not any(side < 0 for side in shape)),
        f"{path}: truncated or corrupt: {len(whole) - start} bytes, its header says {'x'.join(map(str, shape))}",
    )
    return np.frombuffer(whole, np.uint8, offset=start).reshape(shape)
