"""The file of a run's split: the rows that each client trains and tests on, with a digest of the data."""

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
    """The split of a run as its folder holds it."""

    counts: NDArray[np.int64]  # training samples by client and class, so that a report needs no data
    class_names: tuple[str, ...] | None
    client_names: tuple[str, ...] | None
    fingerprint: str  # as of `Federation.fingerprint`
    data_digest: bytes


def read_split(path: Path) -> StoredSplit | None:
    """Read the file of a split; None before the run has split its data.

    Raises:
        DamagedRun: If the file can't be read.
    """
    if not path.exists():
        return None
    try:
        held = read_npz(path)
        return StoredSplit(
            held["counts"].astype(np.int64),
            _names(held, "class_names"),
            _names(held, "client_names"),
            stored_fingerprint(path),
            held["data_digest"].tobytes(),
        )
    except (Unreadable, KeyError, ValueError) as error:
        raise damaged(
            f"{path} can't be read: it was cut, or is not a split that fedhead wrote",
            "put the run's own file back, or delete it: the run is read without it, and resuming it writes it again",
        ) from error


def save_split(path: Path, federation: Federation) -> None:
    """Write the split and a digest of the data, or compare them with those that the file holds.

    Args:
        path: The file.
        federation: The data as it is split now.

    Raises:
        DamagedRun: If the file holds another split or is of other data, or can't be read.
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


def _names(held: dict[str, NDArray[Any]], name: str) -> tuple[str, ...] | None:
    return tuple(map(str, held[name].reshape(-1))) if name in held else None
