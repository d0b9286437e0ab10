"""Serialization of partitions: the sample indices of each client."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.atomic_file import atomic
from fedhead.core.system.errors import Unreadable, require
from fedhead.data.inputs.npz_files import read_npz
from fedhead.data.partitions.allocation import Indices


def fingerprint(indices: list[Indices], local: list[Indices] | None, client_test_from: str) -> str:
    """Return a hash of 16 characters of the clients' training and test indices."""
    digest = hashlib.blake2b(client_test_from.encode(), digest_size=8)
    for part in (indices, local or []):
        digest.update(np.array([len(part), *(len(r) for r in part)], dtype="<i8").tobytes())
        for r in part:
            digest.update(np.ascontiguousarray(r, dtype="<i8").tobytes())
    return digest.hexdigest()


def stored_fingerprint(path: Path) -> str:
    """Return the fingerprint of a stored partition."""
    arrays = read_npz(path)
    try:
        local = unpack(arrays, "local", "local_ends") if "local" in arrays else None
        return fingerprint(unpack(arrays, "indices", "ends"), local, str(arrays["client_test_from"]))
    except (KeyError, IndexError) as error:
        raise Unreadable(f"{path}: not a partition that fedhead wrote ({error})") from None


def pack(indices: list[Indices], values: str, ends: str) -> dict[str, NDArray[np.int64]]:
    """Return two named arrays: the concatenated indices of all clients, and the end offset of each client."""
    return {values: np.concatenate(indices), ends: np.cumsum([len(each) for each in indices])}


def unpack(entries: dict[str, NDArray[Any]], values: str, ends: str) -> list[Indices]:
    """Return the indices of each client, the inverse of `pack`."""
    indices, stops = entries[values], entries[ends]
    if indices.ndim != 1 or stops.ndim != 1 or any(a.dtype.kind not in "iu" for a in (indices, stops)):
        raise IndexError(f"{values} and {ends} must be lists of whole numbers")
    stops = stops.astype(np.int64)
    if not stops.size or stops[0] < 0 or stops[-1] != len(indices) or (np.diff(stops) < 0).any():
        raise IndexError(f"{ends} must rise to the {len(indices)} indices of {values}")
    return [part.astype(np.int64) for part in np.split(indices, stops[:-1])]


def check_indices(clients: list[Indices] | None, limit: int, name: str) -> None:
    """Raise `BadInput` if a client has an index outside 0 … limit-1."""
    indices = np.concatenate(clients or [np.zeros(0, np.int64)])
    require(((indices >= 0) & (indices < limit)).all(), f"{name} are not among its {limit} samples")


def write(path: Path, entries: Mapping[str, Any]) -> None:
    """Write arrays atomically to an .npz file, without entries that are None."""
    arrays = {name: np.asarray(value) for name, value in entries.items() if value is not None}
    with atomic(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes entries for flags
