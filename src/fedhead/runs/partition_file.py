"""File of a run's split: training and test indices of each client, with a digest of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import Unreadable
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.npz_files import read_npz
from fedhead.data.partitions.partition_file import stored_fingerprint
from fedhead.runs.run_folder_schema import damaged


class StoredSplit(NamedTuple):
    """Stored split of a run."""

    counts: NDArray[np.int64]  # training samples by client and class, for reports
    class_names: tuple[str, ...] | None
    client_names: tuple[str, ...] | None
    fingerprint: str  # `Federation.fingerprint`
    data_digest: bytes


def read_split(path: Path) -> StoredSplit | None:
    """Read a split; None if the run has not split its data yet.

    Raises:
        DamagedRun: If the file can't be read.
    """
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        return StoredSplit(
            arrays["counts"].astype(np.int64),
            _names(arrays, "class_names"),
            _names(arrays, "client_names"),
            stored_fingerprint(path),
            arrays["data_digest"].tobytes(),
        )
    except (Unreadable, KeyError, TypeError, ValueError) as error:
        raise damaged(
            f"{path} can't be read: it was cut, or is not a split that fedhead wrote",
            "put the run's own file back, or delete it: the run is read without it, and resuming it writes it again",
        ) from error


def save_split(path: Path, federation: Federation) -> None:
    """Write the split and a digest of the data, or compare them with an existing file.

    Args:
        path: Split file.
        federation: Data of the run.

    Raises:
        DamagedRun: If the file has another split or other data, or can't be read.
    """
    digest = federation.train.digest()
    stored = read_split(path)
    if stored is None:
        federation.save_partition(path, data_digest=np.frombuffer(digest, np.uint8))
    elif (stored.fingerprint, stored.data_digest) != (federation.fingerprint(), digest):
        raise damaged(
            f"{path} differs from today's split: the data has changed since the run began, or the file is another "
            "run's",
            "put back what has changed, or start a new run in another folder",
        )


def _names(arrays: dict[str, NDArray[Any]], name: str) -> tuple[str, ...] | None:
    return tuple(map(str, arrays[name].reshape(-1))) if name in arrays else None
