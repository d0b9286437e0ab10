"""Readers of regular files; pipes and devices are refused, since reading them may never end."""

from __future__ import annotations

import os
from pathlib import Path

from fedhead.core.system.errors import Unreadable


def refuse_special(path: Path) -> None:
    """Check that a path is a regular file; symbolic links are followed.

    Args:
        path: File to read.

    Raises:
        Unreadable: If it does not exist, is not accessible, or is a folder, pipe, device or socket.
    """
    if not os.path.isfile(path):
        fix = "leave it out or give another one"
        raise Unreadable(f"{path}: {'not a regular file' if os.path.exists(path) else 'there is no such file'}; {fix}")


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        Unreadable: If it is not a regular file of UTF-8 text.
    """
    refuse_special(path)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path} can't be read: {error}") from error
