"""Import of objects by reference: `package.module:Name` or `file.py:Name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from fedhead.core.system.errors import BadInput, first_line, unknown

_FILES: dict[Path, tuple[str, ModuleType]] = {}  # cache: file -> digest of its content, module


def find_file(where: str, folders: Iterable[str | Path] = ()) -> Path | None:
    """Find a file in the folders, then in the working directory; absolute paths are allowed."""
    return find_path(where, folders, os.path.isfile)


def find_path(
    where: str, folders: Iterable[str | Path] = (), is_there: Callable[[Path], bool] = os.path.exists
) -> Path | None:
    """Find a path in the folders, then in the working directory; absolute paths are allowed.

    Args:
        where: Relative or absolute path.
        folders: Folders to search, in order.
        is_there: Condition that the path must satisfy.
    """
    path = Path(where).expanduser()
    for folder in [Path()] if path.is_absolute() else [*map(Path, folders), Path.cwd()]:
        if is_there(folder / path):
            return (folder / path).resolve()
    return None


def loaded_file(module: str) -> Path | None:
    """Return the file of a module that was loaded as `file.py:Name`; None for imported modules."""
    return next((path for path, (_, loaded) in _FILES.items() if loaded.__name__ == module), None)


def load_object(
    text: str, title: str, folders: Iterable[str | Path] = (), *, modules_beside: bool = False
) -> tuple[Any, str]:
    """Import an object by its reference.

    Args:
        text: `package.module:Name` or `file.py:Name`; the name may have dots.
        title: Description for errors, such as `method 'mine.py:FedMine'`.
        folders: Folders to search for a file, before the working directory.
        modules_beside: Whether modules may also be imported from the folders.

    Returns:
        Object, and the name of its module in `sys.modules`.

    Raises:
        BadInput: If the file, module or name does not exist, or the import fails.
    """
    where, _, name = text.rpartition(":")
    folders = list(folders)
    if where.endswith(".py"):
        module = _from_file(where, folders, title)
    else:
        module = _imported(where, title, folders if modules_beside else [])
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            public = {known: value for known, value in vars(module).items() if not known.startswith("_")}
            names = [known for known, value in public.items() if getattr(value, "__module__", "") == module.__name__]
            raise unknown(f"name in {where}", name, names or public)
        target = getattr(target, part)
    return target, module.__name__


def _from_file(where: str, folders: Iterable[str | Path], title: str) -> ModuleType:
    folders = list(folders)
    path = find_file(where, folders)
    if path is None:
        looked = dict.fromkeys(str(Path(folder).resolve()) for folder in (*folders, Path.cwd()))
        raise BadInput(
            f"{title}: there is no file {where} in {' or '.join(looked)}: put it there, or correct `folders` in the "
            "recipe (of a run: its config.yaml)"
        )
    try:
        code = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{title}: {path} can't be read ({error.strerror})") from error
    digest = hashlib.sha256(code).hexdigest()
    if path in _FILES and _FILES[path][0] == digest:
        return _FILES[path][1]
    name = f"{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # the file may import others in its folder
    sys.modules[name] = module  # typing resolves hints there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)  # not through a cached .pyc, which may be older
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        del sys.modules[name]
        if isinstance(error, BadInput):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f"{path}, line {lines[-1]}," if lines else str(path)  # a syntax error names the line itself
        raise BadInput(f"{title}: {where} does not import ({first_line(error)})") from error
    _FILES[path] = (digest, module)
    return module


def _imported(name: str, title: str, folders: Iterable[str | Path]) -> ModuleType:
    top = name.partition(".")[0]
    for folder in folders:
        beside = Path(folder) / top
        if (beside.with_suffix(".py").is_file() or beside.is_dir()) and str(folder) not in sys.path:
            sys.path.append(str(folder))
    try:
        return importlib.import_module(name)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise BadInput(
                f"{title}: there is no module {error.name!r}; install the package that has it, "
                "or name a file as in file.py:Name"
            ) from error
        raise BadInput(f"{title}: {name} does not import ({first_line(error)})") from error
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise BadInput(f"{title}: {name} does not import ({first_line(error)})") from error
