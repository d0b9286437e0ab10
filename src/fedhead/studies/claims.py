"""Claims: file-based locks that share the runs of a command among processes of one machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_FAILED = ".failed"  # suffix of files about failures


class Claims:
    """Claims on runs: each run is claimed by one process only.

    A claim is never released: an unfinished run is left for the next command. Failures are shared, so that one
    process can list all of them at the end.

    Args:
        folder: Folder with one file per claimed run, shared by all processes and empty at the start; None: a single
            process, which may claim every run.
        over: Whether the other processes have ended. The runs that they claimed and did not finish are left over.
    """

    def __init__(self, folder: Path | None = None, over: bool = False):
        self._folder = folder
        self.over = over

    def take(self, run: str) -> bool:
        """Claim a run by its key; return False if another process has claimed it."""
        if self._folder is None:
            return True
        try:
            (self._folder / _code(run)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def is_taken(self, run: str) -> bool:
        """Return whether a process has claimed a run; always False for a single process."""
        return self._folder is not None and (self._folder / _code(run)).exists()

    def fail(self, name: str, reason: str) -> None:
        """Share the failure of a run with the other processes."""
        if self._folder is not None:
            file = self._folder / f"{_code(name)}{_FAILED}"
            draft = file.with_suffix(".draft")  # atomic: other processes read concurrently
            draft.write_text(json.dumps([name, reason]), encoding="utf-8")
            draft.replace(file)

    def failures(self) -> dict[str, str]:
        """Return the reasons of failed runs of all processes, by run name."""
        files = [] if self._folder is None else self._folder.glob(f"*{_FAILED}")
        return dict(sorted(tuple(json.loads(file.read_text(encoding="utf-8"))) for file in files))


def _code(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
