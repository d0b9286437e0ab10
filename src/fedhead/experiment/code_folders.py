"""Where the files that a recipe names are, so that what fedhead writes of it finds them again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.errors import BadInput
from fedhead.core.loading import find_file
from fedhead.experiment.run_files import ENVIRONMENT, check_environment, read_object

FOLDERS = "folders"  # a key of YAML files alone: it says where files are, not what is run


def of_run(path: Path) -> list[Path]:
    """Return the folders in which the files of a run's own components were when it was begun.

    A folder that is missing, as on another machine, is among them, so that looking for its files is an error; unless
    these very files, by their recorded digests, are found without it.

    Args:
        path: The run folder; of one without a record there are none.

    Raises:
        BadInput: The record is damaged.
    """
    files: dict[Path, dict[str, str | None]] = {}  # by folder, with the digest of each
    record = path / ENVIRONMENT
    for entry in check_environment(read_object(record) or {}, str(record)).get("components", ()):
        where = Path(entry["name"].rpartition(":")[0])
        above = Path(entry.get("file", "")).parents
        if where.suffix == ".py" and ".." not in where.parts and not where.is_absolute():
            for folder in above[len(where.parts) - 1 : len(where.parts)]:
                files.setdefault(folder, {})[str(where)] = entry.get("digest")
    here = [path, *filter(os.path.isdir, files)]

    def is_needed(folder: Path) -> bool:
        return os.path.isdir(folder) or not all(_is_found(where, here, code) for where, code in files[folder].items())

    return list(filter(is_needed, files))


def _is_found(where: str, folders: Sequence[Path], digest: str | None) -> bool:
    """Say whether what is found of a file, in some folders or the working directory, is the file of a digest."""
    found = find_file(where, folders)
    try:
        return found is not None and hashlib.sha256(found.read_bytes()).hexdigest() == digest
    except OSError:
        return False


def with_written(folders: Iterable[str | Path], written: Any) -> list[Path]:
    """Return folders, and those that a YAML file has under `folders`, relative to the first.

    Args:
        folders: Where files are looked for anyway; the first is the YAML file's own.
        written: What the file has.

    Raises:
        BadInput: It is no list of paths.
    """
    if not isinstance(written, list) or not all(isinstance(one, str) and "\0" not in one for one in written):
        raise BadInput(f"{FOLDERS}: {written!r} is not a list of folders, such as [../code]")
    places = [Path(folder) for folder in folders]
    here = places[0] if places else Path()
    return [*places, *(here / Path(one).expanduser() for one in written)]


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
