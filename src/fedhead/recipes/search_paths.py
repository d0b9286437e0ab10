"""Where the files that a recipe names are, so that what fedhead writes of it finds them again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedhead.core.components.loading import find_file
from fedhead.core.system.errors import BadInput
from fedhead.core.system.special_files import read_text
from fedhead.recipes.run_folder_schema import ENVIRONMENT, SWEEP, check_environment, read_object
from fedhead.recipes.yaml_text import read_yaml

FOLDERS = "folders"  # a key of YAML files alone: it says where files are, not what is run


@dataclass(frozen=True)
class _File:
    """A file of a run's own code: its path as the recipe has it, and what was recorded of it."""

    where: str
    folder: Path  # from which the recipe's path led to it
    digest: str | None
    moved: Path | None  # where that folder is now, if it was moved together with the run folder


def of_run(path: Path) -> list[Path]:
    """Return the folders in which the files of a run's own components are.

    These are the folders in which they were when the run was begun. For a file that is not there any more, it is the
    one that lies to the run folder as it did then, as after both were moved, or the folder of the run's sweep or one of
    the sweep's `folders`: the first in which this very file is found, by its recorded digest. Where there is none, the
    missing folder is among those returned, so that looking for its files is an error; unless they are found without it.

    Args:
        path: The run folder; of one without a record there are none.

    Raises:
        BadInput: The record is damaged.
    """
    files = _recorded(path)
    here = [path, *(file.folder for file in files if os.path.isdir(file.folder))]
    found, missing = list[Path](), list[Path]()
    for file in files:
        moved = (folder for folder in _elsewhere(path, file) if _is_file_of(folder / file.where, file))
        if os.path.isfile(file.folder / file.where):
            found.append(file.folder)
        elif (now := next(moved, None)) is not None:
            found.append(now)
        elif os.path.isdir(file.folder) or not _is_found(file, here):
            missing.append(file.folder)
    return list(dict.fromkeys([*found, *missing]))  # what is there is found before the error about what is not


def _recorded(path: Path) -> list[_File]:
    record, files = path / ENVIRONMENT, list[_File]()
    for entry in check_environment(read_object(record) or {}, str(record)).get("components", ()):
        where = Path(entry["name"].rpartition(":")[0])
        if where.suffix != ".py" or ".." in where.parts or where.is_absolute():
            continue
        depth = len(where.parts)
        for folder in Path(entry.get("file", "")).parents[depth - 1 : depth]:
            relative = os.path.join(entry["relative"], *[os.pardir] * depth) if "relative" in entry else None
            moved = None if relative is None else Path(os.path.normpath(path.resolve() / relative))
            files.append(_File(str(where), folder, entry.get("digest"), moved))
    return files


def _elsewhere(path: Path, file: _File) -> Iterator[Path]:
    """Yield where a file may be that is not where it was: the run's sweep has it in `runs/CELL/SEED`."""
    if file.moved is not None:
        yield file.moved
    for sweep in path.resolve().parents[2:3]:
        with suppress(BadInput):  # a damaged file of the sweep is not this run's matter
            content = read_yaml(read_text(sweep / SWEEP), SWEEP) if os.path.isfile(sweep / SWEEP) else None
            if isinstance(content, dict):
                yield from with_written([sweep], content.get(FOLDERS, []))


def _is_found(file: _File, folders: Sequence[Path]) -> bool:
    """Say whether what is found of a file, in some folders or the working directory, is that very file."""
    found = find_file(file.where, folders)
    return found is not None and _is_file_of(found, file)


def _is_file_of(found: Path, file: _File) -> bool:
    try:
        return os.path.isfile(found) and hashlib.sha256(found.read_bytes()).hexdigest() == file.digest
    except OSError:
        return False


def with_relative(components: Iterable[Mapping[str, str]], place: Path) -> list[dict[str, str]]:
    """Return the record of a run's components, with where their files lie relative to the run folder.

    Args:
        components: As `components.sources` describes them.
        place: The run folder.
    """
    found = [dict(entry) for entry in components]
    for entry in found:
        if "file" in entry and file_of(entry["name"]) is not None:
            entry["relative"] = os.path.relpath(entry["file"], place.resolve())
    return found


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
