"""The file of a run's split: the rows that each client trains and tests on, with a digest of the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput
from fedhead.data.federation.federation import Federation
from fedhead.data.inputs.npz_files import read_npz
from fedhead.data.partitions import partition_file
from fedhead.runs.run_folder_schema import damaged, damaged_if_bad


@dataclass(frozen=True)
class PartitionFile:
    """The file of a run's split; before the run has split its data there is none.

    Args:
        path: Where it is.
    """

    path: Path

    def save(self, federation: Federation) -> None:
        """Store the split and a digest of the data, or compare them with those that are stored.

        Args:
            federation: The data as it is split now.

        Raises:
            BadInput: If another split or other data is stored, or the file can't be read.
        """
        digest = np.frombuffer(federation.train.digest(), np.uint8)
        if not self.path.exists():
            # with the counts, so that a report needs no data
            federation.save_partition(self.path, data_digest=digest)
            return
        with damaged_if_bad():
            same = self.fingerprint() == federation.fingerprint()
        if not same:
            raise damaged(
                f"{self.path} differs from today's split: the data has changed since the run began, or the "
                "file is another run's",
                "put back what has changed, or start a new run in another folder",
            )
        stored = self._array("data_digest")
        if stored is None or not np.array_equal(stored, digest):
            raise BadInput(
                f"{self.path.parent} was begun with other training samples of the same split: the data has changed "
                "since; put it back, or start a new run"
            )

    def counts(self) -> NDArray[np.int64] | None:
        """Return the training samples by client and class; None without a file."""
        counts = self._array("counts")
        return None if counts is None else counts.astype(np.int64)

    def class_names(self) -> tuple[str, ...] | None:
        """Return the names of the classes; None if they have none, or without a file."""
        return self._names("class_names")

    def client_names(self) -> tuple[str, ...] | None:
        """Return the names of the clients; None if they have none, or without a file."""
        return self._names("client_names")

    def fingerprint(self) -> str | None:
        """Return what two runs share that have the same split (`Federation.fingerprint`); None without a file."""
        return partition_file.stored_fingerprint(self.path) if self.path.exists() else None

    def _names(self, name: str) -> tuple[str, ...] | None:
        names = self._array(name)
        return None if names is None else tuple(map(str, names.reshape(-1)))

    def _array(self, name: str) -> NDArray[Any] | None:
        return read_npz(self.path, only=name).get(name) if self.path.exists() else None
