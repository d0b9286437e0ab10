"""Claims: several processes of one machine share the runs of a command."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

_FAILED = ".failed"  # suffix of files about failures


class Claims:
    """Lets each run be taken once, by whichever process asks for it first.

    A process that ends keeps what it took: what it did not finish is left for the next command. Failures are shared,
    so that one process can name all of them at the end.

    Args:
        folder: Holds a file for each run that is taken, the same for all processes and empty at first; None: this
            process is alone and may take every run.
        over: Whether the other processes have ended: what they took and did not finish is left.
    """

    def __init__(self, folder: Path | None = None, over: bool = False):
        self._folder = folder
        self.over = over

    def take(self, run: str) -> bool:
        """Take a run, by its settings; return False if another process has it."""
        if self._folder is None:
            return True
        try:
            (self._folder / _code(run)).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def is_taken(self, run: str) -> bool:
        """Return whether a process has taken a run; alone there is none to ask about."""
        return self._folder is not None and (self._folder / _code(run)).exists()

    def fail(self, name: str, reason: str) -> None:
        """Tell the other processes that a run has failed."""
        if self._folder is not None:
            file = self._folder / f"{_code(name)}{_FAILED}"
            draft = file.with_suffix(".draft")  # others may read all that is there, at any moment
            draft.write_text(json.dumps([name, reason]), encoding="utf-8")
            draft.replace(file)

    def failures(self) -> dict[str, str]:
        """Return why runs have failed, in whichever process, by their names."""
        files = [] if self._folder is None else self._folder.glob(f"*{_FAILED}")
        return dict(sorted(tuple(json.loads(file.read_text(encoding="utf-8"))) for file in files))


def _code(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
