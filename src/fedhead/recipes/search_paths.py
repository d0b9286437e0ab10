"""Search paths of a recipe's files, stored with the recipe."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.system.errors import BadInput

FOLDERS = "folders"  # key of YAML files only: it does not affect the run


def with_written(folders: Iterable[str | Path], written: Any) -> list[Path]:
    """Return folders and those of a YAML file's key `folders`, relative to the first.

    Args:
        folders: Search path; the first is the folder of the YAML file.
        written: Value of the key `folders`.

    Raises:
        BadInput: If the value is no list of paths.
    """
    if not isinstance(written, list) or not all(isinstance(path, str) and "\0" not in path for path in written):
        raise BadInput(f"{FOLDERS}: {written!r} is not a list of folders, such as [../code]")
    places = [Path(folder) for folder in folders]
    here = places[0] if places else Path()
    return [*places, *(here / Path(path).expanduser() for path in written)]


def file_of(name: str) -> str | None:
    """Return the file of a component `file.py:Name`; None for others."""
    where = name.rpartition(":")[0]
    return where if where.endswith(".py") else None


def to_write(files: Iterable[str], folders: Sequence[Path], place: Path) -> list[str]:
    """Return the search path to write into a YAML file, so that files are found from it.

    Args:
        files: Paths in a recipe.
        folders: Current search path, before the working directory.
        place: Folder of the YAML file.

    Returns:
        The folders relative to `place`, without `place` itself.
    """
    needed: dict[str, None] = {}
    for where in files:
        if not Path(where).expanduser().is_absolute():
            holding = (folder for folder in (*folders, Path.cwd()) if (folder / where).exists())
            needed |= {os.path.relpath(folder.resolve(), place.resolve()): None for folder in [*holding][:1]}
    return [folder for folder in needed if folder != os.curdir]
