"""Registries of components: methods, stages, models, heads, data sets, partitions, executors and others.

A component is found by its built-in name, by `package.module:Name`, by `file.py:Name`, or by the name of an entry
point that an installed package declares in the registry's group, such as `fedhead.methods`.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from fedhead.core.components.component_check import check_class, name_of
from fedhead.core.components.component_syntax import Call, read_call
from fedhead.core.components.loading import load_object
from fedhead.core.components.parameters import parameters, refuse_undeclared
from fedhead.core.system.errors import BadInput, require, unknown

T = TypeVar("T")
C = TypeVar("C")
OWN = "fedhead"  # the package whose components are built in


@dataclass(frozen=True)
class Source:
    """Origin of a component, as a run folder records it."""

    name: str  # as the user wrote it
    module: str
    file: str | None = None  # None for built-in components, identified by fedhead's version
    digest: str | None = None  # SHA-256 of the file
    distribution: str | None = None  # installed package, if any
    version: str | None = None

    @property
    def builtin(self) -> bool:
        """True if the component is built in."""
        return self.file is None

    def to_json(self) -> dict[str, str]:
        """Return the entries that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        if self.builtin:
            return "built in"
        known = f"{self.distribution} {self.version or ''}".strip() if self.distribution else None
        return known or str(self.file)


class Listed(NamedTuple):
    """Entry of a registry's listing."""

    name: str
    source: str
    component: object | None  # None if it can't be loaded
    problem: str | None = None  # the error, if it can't be loaded


class Registry(Mapping[str, T], Generic[T]):
    """Registry of one kind of component; as a mapping, it holds the components registered in this process.

    Args:
        kind: Kind of component in error messages, such as "data set".
        group: Group of entry points, such as "fedhead.datasets".
        check: Validates an object, given the object and the name that the user wrote, and returns the component.
            Raises `BadInput` if it is of another kind.
        home: Modules or packages that register the built-in components. They are imported at the first look-up; of a
            package, all modules.
        collections: Factories for names of another library, such as `hf:bert-base-uncased`: from the prefix before the
            colon to a factory as `module:function`.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        check: Callable[[Any, str], T],
        home: Iterable[str] = (),
        collections: Mapping[str, str] = MappingProxyType({}),
    ):
        self.kind, self.group, self._check, self._collections = kind, group, check, collections
        self._home: list[str] | None = list(home)  # None after the import
        self._held: dict[str, Any] = {}
        self._lock = threading.RLock()

    @classmethod
    def of(cls, base: type[C], home: Iterable[str] = (), needs: Iterable[str] = ()) -> Registry[type[C]]:
        """Create a registry of subclasses of a class.

        Args:
            base: Base class, such as `Method`; its lowercase name is the kind.
            home: Modules or packages of the built-in components.
            needs: Hooks that a subclass must override.
        """
        kind, hooks = base.__name__.lower(), tuple(needs)
        return Registry(kind, f"{OWN}.{kind}s", lambda thing, name: check_class(thing, name, base, needs=hooks), home)

    # -- registration -----------------------------------------------------------------------------
    def register(self, name: str, component: C) -> C:
        """Register a component; the same class or function may be registered again, as in notebooks."""
        if not _module_of(component).startswith(f"{OWN}."):
            self._import_home()  # to detect collisions with built-in names
        existing = self._held.get(name)
        if existing is not None and not _same(existing, component):
            raise BadInput(f"the {self.kind} name {name!r} is taken already by {_place(existing)}; choose another name")
        self._held[name] = component
        return component

    def decorator(self, name: str, description: str = "") -> Callable[[C], C]:
        """Return a decorator that registers a class or function under a name.

        Args:
            name: Name in recipes and on the command line; also set as the class attribute `name`.
            description: One line for listings; default: the first line of the docstring.

        Returns:
            Decorator that returns its argument.
        """

        def register(component: C) -> C:
            if description:
                vars(component)["description"] = description
            self.register(name, component)
            if isinstance(component, type) and hasattr(component, "name"):
                component.name = name
            return component

        return register

    def _import_home(self) -> None:
        with self._lock:
            home, self._home = self._home, None
            for name in home or ():
                module = importlib.import_module(name)
                for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
                    importlib.import_module(f"{name}.{inner.name}")

    # -- mapping ----------------------------------------------------------------------------------
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
        """Return a component by its name.

        Args:
            name: Built-in name, name of an entry point, `package.module:Name`, `file.py:Name`, or `collection:name`.
            folders: Folders to search for a file, before the working directory.

        Raises:
            BadInput: If the name is unknown or ambiguous, the import fails, or the component is of another kind.
        """
        return self._check(self._load(name, folders)[0], name)

    def resolve(self, thing: Any, folders: Iterable[str | Path] = ()) -> T:
        """Return a component, given its name or the class, function or instance itself.

        Args:
            thing: Name as for `find`, or an object, which is validated in the same way.
            folders: As for `find`.
        """
        return self.find(thing, folders) if isinstance(thing, str) else self._check(thing, name_of(thing))

    def resolve_call(self, thing: Any, folders: Iterable[str | Path] = ()) -> tuple[Call, T]:
        """Return a component and its parsed call, given a text such as `name(0.3)` or the object itself.

        Args:
            thing: Text, class, function or instance.
            folders: As for `find`.
        """
        if not isinstance(thing, str):
            return Call(name_of(thing), name_of(thing)), self.resolve(thing)
        call = read_call(thing, self.kind)
        return call, self.find(call.name, folders)

    def source(self, name: str, folders: Iterable[str | Path] = ()) -> Source:
        """Return the origin of a component; see `find` for the arguments."""
        _, module, entry = self._load(name, folders)
        if entry is None and module.split(".")[0] == OWN:
            return Source(name, module, distribution=OWN, version=_version(OWN))
        file = getattr(sys.modules.get(module), "__file__", None)
        owner = entry.dist.name if entry is not None and entry.dist is not None else _distribution(module, name)
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
        return Source(name, module, str(file or module), digest, owner, _version(owner) if owner else None)

    def known(self, name: str) -> bool:
        """Return whether a name is registered or an entry point, without importing the entry point."""
        return name in self or bool(self._entry_points(name))

    def permits(self, name: str, allow: Iterable[str]) -> bool:
        """Return whether a component is built in or its code is allowed, without importing the code.

        Args:
            name: As for `find`.
            allow: Allowed modules and packages (`mypkg.fed`, `mypkg`) and files (`mine.py`).
        """
        allow = set(allow)
        if ":" in name:
            return _allowed(name.rpartition(":")[0], allow)
        modules = [entry.module for entry in self._entry_points(name)]
        if name in self and not (module := _module_of(self._held[name])).startswith(f"{OWN}."):
            modules.append(module)
        return all(_allowed(module, allow) for module in modules)

    def listed(self) -> list[Listed]:
        """Return all components, registered ones first, with their origins."""
        names = dict.fromkeys([*sorted(self), *sorted(entry.name for entry in self._entry_points())])
        return [self._list(name) for name in names]

    def _list(self, name: str) -> Listed:
        try:
            component = self._load(name, ())[0]
            return Listed(name, str(self.source(name)), component)
        except BadInput as error:
            return Listed(name, "", None, str(error))

    def _load(self, name: str, folders: Iterable[str | Path]) -> tuple[Any, str, EntryPoint | None]:
        """Return an object by its name, its module, and its entry point, if any."""
        collection, colon, rest = name.partition(":")
        if colon and collection in self._collections:
            make, module = load_object(self._collections[collection], f"{self.kind} {name!r}")
            return make(rest), module, None
        if colon:
            return *load_object(name, f"{self.kind} {name!r}", folders), None
        self._import_home()
        existing = self._held.get(name)
        entries = [entry for entry in self._entry_points(name) if existing is None or entry.value != _place(existing)]
        claims = [f"{_place(existing)} ({_owner(existing)})"] if existing is not None else []
        claims += [f"{entry.value} ({entry.dist.name if entry.dist else 'unknown package'})" for entry in entries]
        require(
            len(claims) <= 1,
            f"the {self.kind} name {name!r} belongs to two: {' and '.join(claims)}; "
            "write the one that you mean as module:Name, or uninstall the other's package",
        )
        if entries:
            try:
                value = entries[0].value
                return *load_object(value, f"{self.kind} {value!r}"), entries[0]
            except BadInput as error:
                raise BadInput(f"{claims[0]}, entry point {name!r}: {error}") from error
        if existing is None:
            require(not name.endswith(".py"), f"{self.kind} {name!r}: say what the file holds, as in {name}:Name")
            names = [*self._held, *(entry.name for entry in self._entry_points())]
            raise unknown(self.kind, name, names, f"fedhead ls {self.group.rpartition('.')[2]}")
        return existing, _module_of(existing), None

    def _entry_points(self, name: str | None = None) -> list[EntryPoint]:
        return [entry for entry in _declared(self.group, tuple(sys.path)) if name in (None, entry.name)]


def instance(registry: Registry[type[C]], asked: Any, base: type[C], folders: Iterable[str | Path] = ()) -> C:
    """Return an instance of a component.

    Args:
        registry: Registry of the component.
        asked: Text such as `name(0.3)` or `file.py:Name`, a class, or an instance, which is returned unchanged.
        base: Base class of the instances.
        folders: As for `Registry.find`.

    Returns:
        Instance of the component.

    Raises:
        BadInput: If the component is unknown or its parameters are invalid.
    """
    if isinstance(asked, base):
        check_class(type(asked), name_of(type(asked)), base, defaults=False)
        return asked
    call, kind = registry.resolve_call(asked, list(folders))
    refuse_undeclared(kind, call.named)
    hints = dict(parameters(kind))
    keywords = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
    named_only = {name: hints.pop(name) for name in keywords if name in hints}
    return kind(**call.arguments(registry.kind, hints, named_only=named_only))


def _allowed(where: str, allow: set[str]) -> bool:
    if where.endswith(".py"):
        return where in allow
    parts = where.split(".")
    return any(".".join(parts[:end]) in allow for end in range(1, len(parts) + 1))


def _module_of(component: object) -> str:
    return str(getattr(component, "__module__", "") or "")


def _place(component: object) -> str:
    """Return a component's reference, `module:Name`."""
    return f"{_module_of(component)}:{getattr(component, '__qualname__', type(component).__qualname__)}"


def _same(existing: object, component: object) -> bool:
    return existing is component or (hasattr(component, "__qualname__") and _place(existing) == _place(component))


def _owner(component: object) -> str:
    return OWN if _module_of(component).startswith(f"{OWN}.") else "registered in this process"


def _distribution(module: str, name: str) -> str | None:
    """Return the installed package that a module belongs to; None for a single file."""
    if name.rpartition(":")[0].endswith(".py"):
        return None
    return next(iter(_packages(tuple(sys.path)).get(module.split(".")[0], ())), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# Cached per sys.path, since they read the files of installed packages.
@cache
def _declared(group: str, path: tuple[str, ...]) -> EntryPoints:
    return metadata.entry_points(group=group)


@cache
def _packages(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
