"""Search paths of a recipe's files, so that a recipe that fedhead writes finds them again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput

FOLDERS = "folders"  # a key of YAML files alone: it says where files are, not what is run


def with_written(folders: Iterable[str | Path], written: Any) -> list[Path]:
    """Return folders, and those that a YAML file has under `folders`, relative to the first.

    Args:
        folders: Where files are looked for anyway; the first is the YAML file's own.
        written: The value of the file's key.

    Raises:
        BadInput: It is no list of paths.
    """
    if not isinstance(written, list) or not all(isinstance(path, str) and "\0" not in path for path in written):
        raise BadInput(f"{FOLDERS}: {written!r} is not a list of folders, such as [../code]")
    places = [Path(folder) for folder in folders]
    here = places[0] if places else Path()
    return [*places, *(here / Path(path).expanduser() for path in written)]


def file_of(name: str) -> str | None:
    """Return the file of a component that is named `file.py:Name`; None for the others."""
    where = name.rpartition(":")[0]
    return where if where.endswith(".py") else None


def to_write(files: Iterable[str], folders: Sequence[Path], place: Path) -> list[str]:
    """Return the folders that a YAML file has to name so that files are found from it.

    Args:
        files: Paths as a recipe has them.
        folders: Where files are looked for now, before the working directory.
        place: The folder of the YAML file.

    Returns:
        The folders, relative to that of the file, which is not among them.
    """
    needed: dict[str, None] = {}
    for where in files:
        if not Path(where).expanduser().is_absolute():
            holding = (folder for folder in (*folders, Path.cwd()) if (folder / where).exists())
            needed |= {os.path.relpath(folder.resolve(), place.resolve()): None for folder in [*holding][:1]}
    return [folder for folder in needed if folder != os.curdir]
