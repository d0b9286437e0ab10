"""Which runs a process has taken, where several processes of one machine share the runs of a command."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

_FAILED = ".failed"  # how the names of files about failures end


class Claims:
    """Lets each run be taken once: by whichever process asks for it first.

    A process that ends keeps what it took: what it did not finish is left for the next command. What fails is told to
    the others, so that one of them can name all of it at the end.

    Args:
        folder: Where a file stands for each run that is taken, the same for all processes and empty at first; None:
            this process is alone, and may take every run.
        over: Whether the other processes have ended: what they took and did not finish is left.
    """

    def __init__(self, folder: Path | None = None, over: bool = False):
        self._folder = folder
        self.over = over

    def take(self, runs: Sequence[Path]) -> list[Path]:
        """Take those runs, by their folders, that no process has taken, and return them."""
        return [run for run in runs if self._take(run)]

    def is_taken(self, run: Path) -> bool:
        """Say whether a process has taken a run; alone there is none to ask about."""
        return self._folder is not None and (self._folder / _code(str(run))).exists()

    @property
    def shared(self) -> bool:
        """Whether other processes may take runs as well."""
        return self._folder is not None

    def fail(self, name: str, reason: str) -> None:
        """Tell the other processes that a run has failed, by the name that its user knows."""
        if self._folder is not None:
            file = self._folder / f"{_code(name)}{_FAILED}"
            draft = file.with_suffix(".draft")  # others may read all that is there, at any moment
            draft.write_text(json.dumps([name, reason]), encoding="utf-8")
            draft.replace(file)

    def failures(self) -> dict[str, str]:
        """Return why runs have failed, in whichever process, by their names; alone there is nobody to ask."""
        files = [] if self._folder is None else self._folder.glob(f"*{_FAILED}")
        return dict(sorted(tuple(json.loads(file.read_text(encoding="utf-8"))) for file in files))

    def _take(self, run: Path) -> bool:
        if self._folder is None:
            return True
        try:
            (self._folder / _code(str(run))).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _code(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
