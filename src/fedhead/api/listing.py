"""Lists and explanations of components of all kinds, recipes and recipe keys."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from fedhead.api.reference import field_entries, recipe_keys
from fedhead.core.components.registry import Listed
from fedhead.core.system.errors import unknown
from fedhead.papers.analyses.registry import ANALYSES
from fedhead.papers.tables.paper_tables import names
from fedhead.recipes.components import registries
from fedhead.recipes.recipe import COMMAND_OPTIONS, KEYS, builtin, describe, unknown_key

# Parameters of a kind's functions that a recipe can't set.
_SKIPPED = {"models": ("classes",), "heads": ("key",)}
_NO_PARAMETERS = ("executors", "analyses")


def list_components(kind: str) -> list[dict[str, Any]]:
    """List the components of a kind.

    Args:
        kind: Kind, such as "methods", "models", "analyses", "recipes" or "keys" (of recipes).

    Returns:
        One entry per component: its `name`, `parameters`, `description`, and its package (`from`).
    """
    if kind == "recipes":
        return [_entry(name, {}, describe(path), "built in") for name, path in {**builtin(), **names()}.items()]
    if kind == "keys":
        return [_entry(e.name, f"{e.allowed} (default {e.default})", e.meaning, "built in") for e in recipe_keys()]
    entries = []
    for listed in {**registries(), "analyses": ANALYSES}[kind].listed():
        if listed.problem is not None:
            entries.append(_entry(listed.name, {}, listed.problem, "broken"))
        elif forms := getattr(listed.component, "forms", None):  # a built-in partition has several forms
            entries += [_entry(f.text, f.parameters, f.description, listed.source) for f in forms]
        else:
            thing = listed.component
            docline = (inspect.getdoc(thing) or "").partition("\n")[0]
            description = str(getattr(thing, "description", "") or docline)
            entries.append(_entry(listed.name, _parameters(kind, listed), description, listed.source))
    return entries


def explain(name: str) -> str:
    """Return the documentation of a recipe key or a component.

    Args:
        name: Recipe key such as "lr", or name of a component such as "fedprox" or "ccvr".

    Raises:
        BadInput: There is neither a key nor a component of this name.
    """
    if entry := next((entry for entry in recipe_keys() if entry.name == name), None):
        lines = [f"{name}: {entry.meaning}", f"  allowed: {entry.allowed}", f"  default: {entry.default}"]
        return "\n".join([*lines, f"  example: {entry.example}"])
    kinds = {**registries(), "analyses": ANALYSES}
    holding = [kind for kind, registry in kinds.items() if registry.known(name)]
    texts = [_explain(kind, item) for kind in holding for item in kinds[kind].listed() if item.name == name]
    if not texts:
        if name in COMMAND_OPTIONS:
            raise unknown_key(name)
        known = [*KEYS, *(word for registry in kinds.values() for word in registry)]
        raise unknown("key or component", name, known, "fedhead ls keys and fedhead ls methods")
    return "\n\n".join(texts)


def _explain(kind: str, item: Listed) -> str:
    """Return the documentation of a component: its docstring, or its lines of the listing."""
    thing: Any = item.component
    word = "analysis" if kind == "analyses" else kind.removesuffix("s")
    if not inspect.isfunction(thing) and not isinstance(thing, type):
        lines = [entry for entry in list_components(kind) if entry["name"].partition("(")[0] == item.name]
        return "\n".join(f"{word} {line['name']}: {line['description']}" for line in lines)
    doc = (inspect.getdoc(thing) or "").partition("\nArgs:")[0].strip()
    prefix = {"methods": "method.", "stages": f"stage.{item.name}.", "models": "model."}.get(kind, "")
    entries = [] if kind in _NO_PARAMETERS else field_entries(thing, prefix)
    rows = [
        f"  {entry.name} = {entry.default} ({entry.allowed})" + (f": {entry.meaning}" if entry.meaning else "")
        for entry in entries
        if entry.name not in _SKIPPED.get(kind, ())
    ]
    return "\n".join([f"{word} {item.name}: {doc}", *(["", "Parameters:", *rows] if rows else [])])


def _entry(name: str, parameters: dict[str, Any] | str, description: str, source: str) -> dict[str, Any]:
    return {"name": name, "parameters": parameters, "description": description, "from": source}


def _parameters(kind: str, listed: Listed) -> dict[str, Any]:
    """Return a component's parameters with their defaults."""
    thing: Any = listed.component
    if kind == "datasets":
        shape = getattr(thing, "shape", None)
        return {"classes": thing.classes, "shape": "x".join(map(str, shape))} if shape else {}
    if dataclasses.is_dataclass(thing):
        fields = sorted(dataclasses.fields(thing), key=lambda f: bool(f.kw_only))  # in the order of __init__
        return {f.name: f.default for f in fields if f.init and f.repr and f.default is not dataclasses.MISSING}
    arguments = {} if kind in _NO_PARAMETERS else inspect.signature(thing).parameters
    defaults = {name: p.default for name, p in arguments.items() if name not in _SKIPPED.get(kind, ())}
    return {name: _plain(value) for name, value in defaults.items() if value is not inspect.Parameter.empty}


def _plain(value: Any) -> Any:
    """Convert a value for JSON."""
    return value if isinstance(value, str | int | float | bool | list | tuple | None) else str(value)
