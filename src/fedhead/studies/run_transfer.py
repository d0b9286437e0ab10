"""Run folders on their way between machines: what has changed in one, and putting that into another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedhead.core.system.atomic_file import atomic
from fedhead.runs.run_folder_schema import CHECKPOINT, CONFIG, ENVIRONMENT, METRICS, RESULT, STAGE_STATES

Files = dict[str, bytes | None]  # by name, in the order in which they are written; None: the file is gone
# A folder is whole at any moment of its writing: what a file counts on is written before it, and read after it.
_LAST = (ENVIRONMENT, CONFIG, METRICS, CHECKPOINT, STAGE_STATES, RESULT)


class ChangedFiles:
    """Tells what has changed in a run folder since the last time.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: dict[str, tuple[int, ...]] = {}
        self.take()

    def take(self) -> Files:
        """Return the files that are new, changed or gone, in the order in which they are to be written."""
        now = {name: _version(self._folder / name) for name in _names(self._folder)}
        changed: Files = {name: None for name in self._seen if name not in now}
        changed |= read_files(self._folder, {name for name in now if now[name] != self._seen.get(name)})
        self._seen = now
        return changed


def read_files(folder: Path, names: set[str] | None = None) -> Files:
    """Read the files of a run folder, while a process may be writing them.

    Args:
        folder: The run folder; it need not be there.
        names: Only these; None: all.
    """
    order = sorted(_names(folder), key=_rank)
    found: Files = {}
    for name in reversed([name for name in order if names is None or name in names]):
        try:
            found[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            continue  # replaced or removed meanwhile
    return dict(reversed(found.items()))


def place(files: Mapping[str, bytes | None], folder: Path) -> None:
    """Put files into a run folder, each whole; results name the folder as the place of their run."""
    for name, content in files.items():
        path = folder / name
        if content is None:
            path.unlink(missing_ok=True)
            continue
        if name == RESULT:
            content = (json.dumps({**json.loads(content), "run": str(folder)}, indent=2) + "\n").encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as draft:
            draft.write_bytes(content)


def _names(folder: Path) -> list[str]:
    """The files of a folder and below, but for drafts and locks."""
    found = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return [path.relative_to(folder).as_posix() for path in found]


def _rank(name: str) -> int:
    return _LAST.index(name) if name in _LAST else -1


def _version(path: Path) -> tuple[int, ...]:
    try:
        about = path.stat()
    except FileNotFoundError:
        return ()
    return about.st_ino, about.st_size, about.st_mtime_ns
