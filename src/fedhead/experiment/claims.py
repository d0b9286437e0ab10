"""Which runs a process has taken, where several processes of one machine share the runs of a command."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path


class Claims:
    """Lets each run be taken once: by whichever process asks for it first.

    A process that ends keeps what it took: what it did not finish is left for the next command.

    Args:
        folder: Where a file stands for each run that is taken, the same for all processes and empty at first; None:
            this process is alone, and may take every run.
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder

    def take(self, runs: Sequence[Path]) -> list[Path]:
        """Take those runs, by their folders, that no process has taken, and return them."""
        return [run for run in runs if self._take(run)]

    def _take(self, run: Path) -> bool:
        if self._folder is None:
            return True
        name = hashlib.blake2b(str(run).encode(), digest_size=16).hexdigest()
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
