"""Locks: one process at a time writes to a run folder."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from fedhead.core.system.errors import BadInput

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder, which a killed process releases.

    Raises:
        BadInput: If another process holds it, or the folder can't be written to.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise in_use(folder) from None
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        yield
    finally:
        lock.release()


def in_use(folder: Path, why: str = "another process is running in it") -> BadInput:
    """Return the error of a folder that another process holds."""
    return BadInput(
        f"{folder} is in use: {why}; give the same command again when that has ended, or select another folder with "
        "--out"
    )


def unwritable(folder: Path, error: OSError) -> BadInput:
    """Return the error of a folder that can't be written to."""
    return BadInput(f"{folder} can't be written to: {error.strerror}; select another folder with --out")


def hold(file: IO[str], folder: Path) -> None:
    """Lock a file of a folder for this process, until it is closed.

    Args:
        file: The open file.
        folder: The folder, for the error.

    Raises:
        BadInput: If another process holds it.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise in_use(folder) from error


def wait_for(file: IO[str]) -> None:
    """Lock a file for this process until it is closed; while another one holds it, wait."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX)


def wait_for_writer(file: IO[str]) -> None:
    """Keep those out that `wait_for` a file, until it is closed; while one of them holds it, wait.

    Where the file system has no locks there is nobody to wait for, as nothing is written without one.
    """
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_SH)  # shared: a file that can only be read takes no other on NFS
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
