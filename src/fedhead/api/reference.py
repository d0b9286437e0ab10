"""Reference entries of recipe keys and component parameters, extracted from the code.

A field is documented by its type, its default and its comment, or by `Args:` of its class.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import io
import tokenize
from contextlib import suppress
from typing import Any, NamedTuple

from fedhead.core.components.parameters import describe_type, parameters
from fedhead.core.system.errors import BadInput
from fedhead.recipes.components import registries
from fedhead.recipes.recipe import KEYS, Recipe


class Entry(NamedTuple):
    """Documentation of one key or parameter."""

    name: str
    allowed: str
    default: str
    meaning: str
    example: str = ""


def recipe_keys() -> list[Entry]:
    """Return the documentation of every recipe key, in the order of a recipe."""
    return [entry for entry in field_entries(Recipe) if entry.name in KEYS]


def field_entries(cls: type, prefix: str = "") -> list[Entry]:
    """Return the documentation of a dataclass's fields.

    Args:
        cls: Dataclass.
        prefix: Prefix of each name, such as "method.".
    """
    comments: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            comments |= _arguments(inspect.getdoc(base) or "")
            with suppress(OSError):  # a class of an interactive session has no source file
                comments |= _comments(inspect.getsource(base))
    defaults = {f.name: f.default for f in dataclasses.fields(cls)}
    entries = []
    for name, hint in parameters(cls).items():
        meaning, _, example = comments.get(name, "").partition(", e.g. ")
        meaning = meaning.replace("None:", "null:").replace("False:", "false:")  # as recipes write them
        entries.append(Entry(prefix + name, describe_type(hint), written(defaults[name]), meaning, example))
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
        return "\n".join([*lines, f"  example: fedhead run digits '{entry.example}'"])
    matches = [registry for registry in registries().values() if name in registry]
    if not matches:
        near = difflib.get_close_matches(name, [*KEYS, *(word for r in registries().values() for word in r)], n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput(
            f"unknown key or component {name!r}: {hint}fedhead ls keys lists keys, fedhead ls methods methods"
        )
    return "\n\n".join(_component(registry.kind, name, registry[name]) for registry in matches)


def _component(kind: str, name: str, component: Any) -> str:
    doc = (inspect.getdoc(component) or "").partition("\nArgs:")[0].strip()
    text = f"{kind} {name}: {doc}"
    if not (isinstance(component, type) and dataclasses.is_dataclass(component)):
        return text
    prefix = {"method": "method.", "stage": f"stage.{name}."}.get(kind, "")
    entries = field_entries(component, prefix)
    rows = [f"  {e.name} = {e.default} ({e.allowed})" + (f": {e.meaning}" if e.meaning else "") for e in entries]
    return "\n".join([text, *(["", "Parameters:", *rows] if rows else [])])


def _comments(source: str) -> dict[str, str]:
    """Return the comment of each field of a class."""
    lines = source.splitlines()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0] - 1: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    texts = {}
    for number, line in enumerate(lines):
        word, colon, _ = line.strip().partition(":")
        if not (colon and word.isidentifier() and line.startswith("    ") and not line.startswith("     ")):
            continue
        above: list[str] = []
        while (before := number - len(above) - 1) in comments and lines[before].strip().startswith("#"):
            above.insert(0, comments[before])
        if text := comments.get(number) or " ".join(above):
            texts[word] = text
    return texts


def _arguments(docstring: str) -> dict[str, str]:
    """Parse the section `Args:` of a docstring."""
    texts: dict[str, str] = {}
    word = ""
    for line in docstring.partition("\nArgs:\n")[2].splitlines():
        if not line.startswith("    "):
            break
        if line[4] != " ":
            word, _, text = line.strip().partition(": ")
            texts[word] = text
        else:
            texts[word] += " " + line.strip()
    return texts


def written(value: Any) -> str:
    """Format a value for a recipe."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return {"True": "true", "False": "false", "None": "null"}.get(str(value), str(value))
