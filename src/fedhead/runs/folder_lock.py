"""Locks: one process at a time writes to a run folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedhead.core.system.errors import BadInput


def hold(file: IO[str], folder: Path) -> None:
    """Lock a file of a run folder for this process, until it is closed.

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
    except OSError as error:
        if error.errno == errno.ESTALE:  # removed by another machine, which is no fault of this one: no cause is named
            raise in_use(folder) from None
        raise


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


def was_removed(file: IO[str]) -> bool:
    """Return whether an open file has been removed meanwhile: a lock on it keeps nobody out."""
    try:
        return os.fstat(file.fileno()).st_nlink == 0
    except OSError as error:
        if error.errno == errno.ESTALE:  # on a network file system, by another machine
            return True
        raise


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock; while another process holds it, wait.

    Args:
        file: Stands for the lock, and is there only while somebody holds it or waits.
    """
    held = False
    while not held:
        with file.open("w") as lock:
            try:
                wait_for(lock)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                continue  # removed as below, by another machine
            if was_removed(lock):
                continue  # by whoever held it: another process may hold a new one
            held = True
            try:
                yield
            finally:
                file.unlink(missing_ok=True)


@contextmanager
def creating(folder: Path, first: str) -> Iterator[None]:
    """Hold a folder while its first file is written.

    Args:
        folder: The folder.
        first: Name of the first file.

    Raises:
        BadInput: If another process creates it.
    """
    file = folder / f".{first}.creating"
    with file.open("w") as lock:
        hold(lock, folder)
        if was_removed(lock):  # by whoever has just held it
            raise in_use(folder)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def in_use(folder: Path, why: str = "another process is running in it") -> BadInput:
    """Return the error of a folder that another process holds."""
    return BadInput(
        f"{folder} is in use: {why}; give the same command again when that has ended, or select another folder with "
        "--out"
    )
