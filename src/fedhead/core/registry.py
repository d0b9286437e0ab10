"""One registry per kind of component: methods, stages, models, heads, data sets, partitions, executors and others.

A component is found by its built-in name, by `package.module:Name`, by `file.py:Name`, or by the name of an entry
point that an installed package declares in the registry's group (`fedhead.methods` for methods, and so on).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from fedhead.core.errors import BadInput, unknown

T = TypeVar("T")
C = TypeVar("C")
OWN = "fedhead"  # the package whose components are built in


@dataclass(frozen=True)
class Source:
    """Where a component came from, as a run folder records it."""

    name: str  # as it was asked for
    module: str
    file: str | None = None  # None for built-in components, for which the version of fedhead stands
    digest: str | None = None  # SHA-256 of the file
    distribution: str | None = None  # the installed package, where there is one
    version: str | None = None

    @property
    def builtin(self) -> bool:
        """Whether fedhead itself brings the component."""
        return self.file is None

    def to_json(self) -> dict[str, str]:
        """Return the entries that are known."""
        return {word: value for word, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        if self.builtin:
            return "built in"
        known = f"{self.distribution} {self.version or ''}".strip() if self.distribution else None
        return known or str(self.file)


class Listed(NamedTuple):
    """One line of a registry's listing."""

    name: str
    source: str
    component: object | None  # None where it can't be loaded …
    problem: str | None = None  # … and why


class Registry(Mapping[str, T], Generic[T]):
    """The components of one kind; as a mapping it holds those that are registered in this process.

    Args:
        kind: What one component is called in error messages, such as "data set".
        group: The group of entry points, such as "fedhead.datasets".
        check: Turns what was registered or loaded into a component, or raises `BadInput` if it is of another kind.
            It is called with the object and the name that the user wrote.
        home: The modules (or packages, all modules of which are meant) that register the built-in components. They
            are imported when a component is first looked up.
    """

    def __init__(self, kind: str, group: str, check: Callable[[Any, str], T], home: Iterable[str] = ()):
        self.kind, self.group, self._check = kind, group, check
        self._home: list[str] | None = list(home)  # None once it is imported
        self._held: dict[str, Any] = {}
        self._lock = threading.RLock()

    # -- registration -----------------------------------------------------------------------------
    def register(self, name: str, component: C) -> C:
        """Enter a component under a name; the same class or function may be entered again, as notebooks do."""
        if not _module_of(component).startswith(f"{OWN}."):
            self._import_home()  # so that a built-in name can't be taken
        held = self._held.get(name)
        if held is not None and not _same(held, component):
            raise BadInput(f"the {self.kind} name {name!r} is taken already by {_place(held)}; choose another name")
        self._held[name] = component
        return component

    def decorator(self, name: str) -> Callable[[C], C]:
        """Return a decorator that registers a class or function under a name."""
        return lambda component: self.register(name, component)

    def _import_home(self) -> None:
        with self._lock:
            home, self._home = self._home, None
            for name in home or ():
                module = importlib.import_module(name)
                for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
                    importlib.import_module(f"{name}.{inner.name}")

    # -- the registered ones ----------------------------------------------------------------------
    def __getitem__(self, name: str) -> T:
        self._import_home()
        return self._check(self._held[name], name)

    def __iter__(self) -> Iterator[str]:
        self._import_home()
        return iter(self._held)

    def __len__(self) -> int:
        self._import_home()
        return len(self._held)

    def __contains__(self, name: object) -> bool:
        self._import_home()
        return name in self._held

    def __delitem__(self, name: str) -> None:
        del self._held[name]

    # -- look-up ----------------------------------------------------------------------------------
    def find(self, name: str, folders: Iterable[str | Path] = ()) -> T:
        """Return the component of a name.

        Args:
            name: A built-in name, an entry point's name, `package.module:Name` or `file.py:Name`.
            folders: Where a file is looked for, before the working directory.

        Raises:
            BadInput: In one line, if nothing has that name, if two packages claim it, if its code does not import,
                or if it is of another kind.
        """
        return self._check(self._load(name, folders)[0], name)

    def source(self, name: str, folders: Iterable[str | Path] = ()) -> Source:
        """Return where the component of a name comes from; takes what `find` takes."""
        _, module, entry = self._load(name, folders)
        if entry is None and module.split(".")[0] == OWN:
            return Source(name, module, distribution=OWN, version=_version(OWN))
        file = getattr(sys.modules.get(module), "__file__", None)
        owner = entry.dist.name if entry is not None and entry.dist is not None else _distribution(module, name)
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
        return Source(name, module, str(file or module), digest, owner, _version(owner) if owner else None)

    def permits(self, name: str, allow: Iterable[str]) -> bool:
        """Say whether a name is built in or its code is allowed, without importing that code.

        Args:
            name: As for `find`.
            allow: Modules and packages (`mypkg.fed`, `mypkg`) and files, as names write them (`mine.py`).
        """
        allow = set(allow)
        if ":" in name:
            return _allowed(name.rpartition(":")[0], allow)
        modules = [entry.module for entry in self._entry_points(name)]
        if name in self and not (module := _module_of(self._held[name])).startswith(f"{OWN}."):
            modules.append(module)
        return all(_allowed(module, allow) for module in modules)

    def listed(self) -> list[Listed]:
        """Return all names, registered ones first, with where each comes from."""
        names = dict.fromkeys([*sorted(self), *sorted(entry.name for entry in self._entry_points())])
        return [self._list(name) for name in names]

    def _list(self, name: str) -> Listed:
        try:
            component = self._load(name, ())[0]
            return Listed(name, str(self.source(name)), component)
        except BadInput as error:
            return Listed(name, "", None, str(error))

    def _load(self, name: str, folders: Iterable[str | Path]) -> tuple[Any, str, EntryPoint | None]:
        """The object of a name, its module, and the entry point that it was found by."""
        if ":" in name:
            return *self._by_reference(name, folders), None
        self._import_home()
        held = self._held.get(name)
        entries = [entry for entry in self._entry_points(name) if held is None or entry.value != _place(held)]
        claims = [f"{_place(held)} ({_owner(held)})"] if held is not None else []
        claims += [f"{entry.value} ({entry.dist.name if entry.dist else 'unknown package'})" for entry in entries]
        if len(claims) > 1:
            raise BadInput(
                f"the {self.kind} name {name!r} belongs to two: {' and '.join(claims)}; "
                "write the one that you mean as module:Name, or uninstall the other's package"
            )
        if entries:
            try:
                return *self._by_reference(entries[0].value, ()), entries[0]
            except BadInput as error:
                raise BadInput(f"{claims[0]}, entry point {name!r}: {error}") from error
        if held is None:
            if name.endswith(".py"):
                raise BadInput(f"{self.kind} {name!r}: say what the file holds, as in {name}:Name")
            raise unknown(self.kind, name, [*self._held, *(entry.name for entry in self._entry_points())])
        return held, _module_of(held), None

    def _entry_points(self, name: str | None = None) -> list[EntryPoint]:
        return [entry for entry in _declared(self.group, tuple(sys.path)) if name in (None, entry.name)]

    def _by_reference(self, text: str, folders: Iterable[str | Path]) -> tuple[Any, str]:
        where, _, name = text.rpartition(":")
        title = f"{self.kind} {text!r}"
        module = _from_file(where, folders, title) if where.endswith(".py") else _imported(where, title)
        found: Any = module
        for part in name.split("."):
            if not hasattr(found, part):
                raise unknown(f"name in {where}", name, [word for word in vars(module) if not word.startswith("_")])
            found = getattr(found, part)
        return found, module.__name__


# -- modules and files ------------------------------------------------------------------------------
_FILES: dict[Path, tuple[str, ModuleType]] = {}  # what was loaded from files, with the digest of each then


def find_file(where: str, folders: Iterable[str | Path] = ()) -> Path | None:
    """Return the file of a relative (or absolute) path: in one of the folders, or in the working directory."""
    path = Path(where).expanduser()
    places = (Path(folder) / path for folder in (*folders, Path.cwd()))
    return next((place.resolve() for place in places if place.is_file()), None)


def _from_file(where: str, folders: Iterable[str | Path], title: str) -> ModuleType:
    folders = list(folders)
    path = find_file(where, folders)
    if path is None:
        looked = dict.fromkeys(str(Path(folder).resolve()) for folder in (*folders, Path.cwd()))
        raise BadInput(f"{title}: there is no file {where} in {' or '.join(looked)}")
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
        sys.path.append(str(path.parent))  # the file may import what lies beside it
    before = sys.modules.get(name)
    sys.modules[name] = module  # type hints are looked up there
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)  # these very bytes: a cached .pyc may be older
    except BadInput:
        _restore(name, before)
        raise
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        _restore(name, before)
        raise BadInput(f"{title}: {path} does not import ({_first_line(error)})") from error
    _FILES[path] = (digest, module)
    return module


def _restore(name: str, before: ModuleType | None) -> None:
    del sys.modules[name]
    if before is not None:
        sys.modules[name] = before


def _imported(name: str, title: str) -> ModuleType:
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
        raise BadInput(f"{title}: {name} does not import ({_first_line(error)})") from error
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise BadInput(f"{title}: {name} does not import ({_first_line(error)})") from error


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _allowed(where: str, allow: set[str]) -> bool:
    if where.endswith(".py"):
        return where in allow
    parts = where.split(".")
    return any(".".join(parts[:end]) in allow for end in range(1, len(parts) + 1))


def _module_of(component: object) -> str:
    return str(getattr(component, "__module__", "") or "")


def _place(component: object) -> str:
    """Where a component was defined."""
    return f"{_module_of(component)}:{getattr(component, '__qualname__', type(component).__qualname__)}"


def _same(held: object, component: object) -> bool:
    return held is component or (hasattr(component, "__qualname__") and _place(held) == _place(component))


def _owner(component: object) -> str:
    return OWN if _module_of(component).startswith(f"{OWN}.") else "registered in this process"


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _distribution(module: str, name: str) -> str | None:
    """The installed package that a module belongs to; none for a single file."""
    if name.rpartition(":")[0].endswith(".py"):
        return None
    return next(iter(_packages(tuple(sys.path)).get(module.split(".")[0], ())), None)


# Both read the files of every installed package: once for each sys.path is enough.
@cache
def _declared(group: str, path: tuple[str, ...]) -> EntryPoints:
    return metadata.entry_points(group=group)


@cache
def _packages(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
