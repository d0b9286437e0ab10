"""Locks: one process at a time writes to a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedhead.core.system.errors import BadInput

LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; the system releases it if the process is killed.

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
    """Return the error for a folder that another process has locked."""
    return BadInput(
        f"{folder} is in use: {why}; give the same command again when that has ended, or select another folder with "
        "--out"
    )


def unwritable(folder: Path, error: OSError) -> BadInput:
    """Return the error for an unwritable folder."""
    return BadInput(f"{folder} can't be written to: {error.strerror}; select another folder with --out")
