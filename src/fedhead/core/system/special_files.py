"""Regular files only: a pipe or a device in place of one is refused before it is opened, as reading may never end."""

from __future__ import annotations

import stat
from pathlib import Path

from fedhead.core.system.errors import BadInput, Unreadable, require


def refuse_special(path: Path) -> None:
    """Refuse a path that leads to something else than a regular file; a symbolic link is followed.

    Args:
        path: What is about to be read.

    Raises:
        BadInput: If it is not there, can't be reached, or is a folder, pipe, device or socket.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise Unreadable(f"{path}: can't be read ({error.strerror})") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise BadInput(f"{path}: can't be read ({getattr(error, 'strerror', None) or error})") from None
    require(stat.S_ISREG(mode), f"{path}: not a regular file; leave it out or give another one")


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        BadInput: If it is no regular file of UTF-8 text.
    """
    refuse_special(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path} can't be read: {error}") from error
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error}") from error
