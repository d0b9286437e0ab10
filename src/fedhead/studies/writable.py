"""Check of output folders."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedhead.core.system.errors import BadInput


class Unwritable(BadInput):
    """Error for an unwritable folder; the message names the option that selects another one."""


def check_writable(folder: Path, purpose: str, option: str) -> None:
    """Create a folder and check that it is writable, before any training.

    Args:
        folder: Folder.
        purpose: Purpose of the folder, such as "results".
        option: Option that selects another folder.

    Raises:
        Unwritable: The path is no folder, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror
        raise Unwritable(f"{folder} can't keep {purpose}: {reason}; select another folder with {option}") from error
