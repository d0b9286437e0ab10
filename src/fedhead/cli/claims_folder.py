"""The folder of the claims of a command on several devices, which is removed also after its processes were killed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedhead.core.system.errors import BadInput
from fedhead.runs.folder_lock import hold, wait_for_writer

_PREFIX, _LOCK = "fedhead-claims-", ".lock"
_BEING_MADE_S = 60.0  # a folder that is younger may be one that its process has not locked yet


@contextmanager
def claims_folder() -> Iterator[Path]:
    """Make a folder for claims, and remove it at the end; those that killed processes have left are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError, BadInput):  # it is in use, or another command is removing it too
            _remove_unused(left)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as made, mark_in_use(Path(made)):
        yield Path(made)


@contextmanager
def mark_in_use(folder: Path) -> Iterator[None]:
    """Keep other commands from removing a folder of claims while this process lives, however it ends."""
    with (folder / _LOCK).open("a") as lock:
        wait_for_writer(lock)
        yield


def _remove_unused(folder: Path) -> None:
    """Remove a folder of this user's that no living process uses; the temporary folder may be that of all users."""
    about = folder.lstat()
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    if own and time.time() - about.st_mtime > _BEING_MADE_S:
        with (folder / _LOCK).open("a") as lock:
            hold(lock, folder)
            shutil.rmtree(folder)
