"""File formats of the standard data sets: CIFAR's pickles, idx and idx.gz."""

from __future__ import annotations

import gzip
import hashlib
import io
import math
import pickle
import pickletools
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.special_files import refuse_special

_UNPACKED = 1 << 31  # the most bytes of an unpacked file


class _Dtype:
    """Replaces numpy.dtype while unpickling: plain numbers, no objects, no fields."""

    def __init__(self, code: str | bytes, *rest: Any):
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        if not re.fullmatch(r"[biuf][1248]", self.code):
            raise pickle.UnpicklingError(f"it holds an array of {self.code!r}, not of numbers")
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in "<>|=":
            raise pickle.UnpicklingError(f"it holds numbers in the byte order {order!r}")
        self.order = order


class _Array:
    """Replaces an array while unpickling, so that numpy's own code never sees untrusted metadata."""

    value: NDArray[Any] = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _Dtype) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("it holds an array that is not plain bytes")
        flat = np.frombuffer(raw, np.dtype(kind.order + kind.code))
        self.value = flat.reshape(shape, order="F" if fortran else "C")


def _reconstruct(*ignored: Any) -> _Array:
    return _Array()


def _encode(text: str, codec: str) -> bytes:
    """Decode bytes that Python 3 wrote to an old pickle."""
    if codec not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"it uses the codec {codec!r}")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): None,  # only used as an argument of _reconstruct
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    """Allows only arrays, bytes, str, int, list and dict: an unrestricted pickle can run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it needs {module}.{name}, which no data file should")
        return _ALLOWED[module, name]


def read_bytes(path: Path, md5: str | None = None) -> bytes:
    """Read a file, decompressed if it is gzipped, and check the md5 of its contents."""
    refuse_special(path)
    try:
        whole = path.read_bytes()
        if whole[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                whole = file.read(_UNPACKED + 1)
            require(
                len(whole) <= _UNPACKED,
                f"{path}: more than {_UNPACKED >> 30} GiB when unpacked; no data set of this format is",
            )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{path}: truncated or corrupt ({error}); delete it and fetch it again") from None
    except OSError as error:
        raise BadInput(f"{path}: can't be read ({error.strerror or error})") from None
    require(
        md5 is None or hashlib.md5(whole, usedforsecurity=False).hexdigest() == md5,
        f"{path}: its checksum is not the published {md5}: truncated or altered; delete and fetch it again",
    )
    return whole


def unpickle(path: Path, md5: str | None = None) -> dict[bytes, Any]:
    """Read the dictionary of a CIFAR pickle without running any code in it."""
    whole = read_bytes(path, md5)
    try:
        if md5 is None:  # of the published files it is known
            _refuse_wide_memo(whole)
        held = _Unpickler(io.BytesIO(whole), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise BadInput(f"{path}: refused or corrupt: {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise BadInput(f"{path}: truncated or corrupt ({type(error).__name__}); delete it and fetch it again") from None
    require(isinstance(held, dict), f"{path}: not one of CIFAR's batches (it holds a {type(held).__name__})")
    return {
        key.encode() if isinstance(key, str) else key: value.value if isinstance(value, _Array) else value
        for key, value in held.items()
    }


def _refuse_wide_memo(whole: bytes) -> None:
    """Refuse a pickle that remembers something under a huge number, for which Python would allocate a huge table."""
    for opcode, number, _ in pickletools.genops(whole):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= (number or 0) <= len(whole):
            raise pickle.UnpicklingError(f"it remembers {number} things")


def cifar_batch(path: Path, label: bytes, md5: str | None = None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read the images [N, 3, 32, 32] and labels of one CIFAR batch.

    Args:
        path: The file.
        label: Key of the labels, b"labels" or b"fine_labels".
        md5: Expected checksum.

    Raises:
        BadInput: If the file is corrupt or not a CIFAR batch.
    """
    held = unpickle(path, md5)
    try:
        data, y = np.asarray(held[b"data"]), np.asarray(held[label], np.int64)
    except KeyError as error:
        raise BadInput(f"{path}: not one of CIFAR's batches (it lacks {error})") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{path}: not one of CIFAR's batches ({error})") from None
    require(
        data.dtype == np.uint8 and data.ndim == 2 and (data.shape == (len(y), 3072)),
        f"{path}: {data.shape} {data.dtype} images and {len(y)} labels do not make a CIFAR batch",
    )
    return data.reshape(-1, 3, 32, 32), y


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
