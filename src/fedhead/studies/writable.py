"""Folders that files can be added to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedhead.core.system.errors import BadInput


class Unwritable(BadInput):
    """A folder that files can't be added to: the message names the option that selects another one."""


def check_writable(folder: Path, what: str, option: str) -> None:
    """Make a folder, and refuse one that files can't be added to, before anything is trained for them.

    Args:
        folder: The folder.
        what: What it is for, such as "results".
        option: The option that selects another one.

    Raises:
        Unwritable: It is no folder, or can't be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise Unwritable(f"{folder} can't keep {what}: {reason}; select another folder with {option}") from error
