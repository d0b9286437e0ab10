"""Transfer of run folders between machines: collect changed files and write them elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fedhead.core.system.atomic_file import atomic
from fedhead.runs.run_folder_schema import CHECKPOINT, CONFIG, ENVIRONMENT, METRICS, RESULT, STAGE_STATES

Files = dict[str, bytes | None]  # contents by name, in writing order; None: deleted
# Files are written after those that they depend on and read in reverse order: the folder is always consistent.
_LAST = (ENVIRONMENT, CONFIG, METRICS, CHECKPOINT, STAGE_STATES, RESULT)


class ChangedFiles:
    """Tracker of changed files in a run folder.

    Args:
        folder: Run folder.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: dict[str, tuple[int, ...]] = {}
        self.take()

    def take(self) -> Files:
        """Return the files created, changed or deleted since the last call, in writing order."""
        now = {name: _version(self._folder / name) for name in _names(self._folder)}
        changed: Files = {name: None for name in self._seen if name not in now}
        changed |= read_files(self._folder, {name for name in now if now[name] != self._seen.get(name)})
        self._seen = now
        return changed


def read_files(folder: Path, names: set[str] | None = None) -> Files:
    """Read the files of a run folder that another process may be writing.

    Args:
        folder: Run folder; may be missing.
        names: Names of the files to read; None: all.
    """
    order = sorted(_names(folder), key=_rank)
    contents: Files = {}
    for name in reversed([name for name in order if names is None or name in names]):
        try:
            contents[name] = (folder / name).read_bytes()
        except FileNotFoundError:
            continue  # removed by another process
    return dict(reversed(contents.items()))


def place(files: Mapping[str, bytes | None], folder: Path) -> None:
    """Write files into a run folder atomically; results get the new folder as the location of their run."""
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
    """List the files of a folder recursively, without drafts and locks."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return [path.relative_to(folder).as_posix() for path in paths]


def _rank(name: str) -> int:
    return _LAST.index(name) if name in _LAST else -1


def _version(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns
