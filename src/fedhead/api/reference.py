"""Reference entries of recipe keys and component parameters, extracted from the code.

A field is documented by its type, its default and its comment, or by `Args:` of its class.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import tokenize
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from fedhead.core.components.parameters import describe_type, parameters
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


def field_entries(target: Callable[..., Any], prefix: str = "") -> list[Entry]:
    """Return the documentation of the fields of a dataclass, or of the parameters with defaults of a function.

    Args:
        target: Dataclass or function.
        prefix: Prefix of each name, such as "method.".
    """
    comments: dict[str, str] = {}
    for base in reversed(target.__mro__ if isinstance(target, type) else [target]):
        comments |= _arguments(inspect.getdoc(base) or "")
        if dataclasses.is_dataclass(base):
            with suppress(OSError):  # a class of an interactive session has no source file
                comments |= _comments(inspect.getsource(base))
    if dataclasses.is_dataclass(target):
        defaults = {f.name: f.default for f in dataclasses.fields(target)}
    else:
        given = inspect.signature(target).parameters.values()
        defaults = {p.name: p.default for p in given if p.default is not p.empty}
    entries = []
    for name, hint in parameters(target).items():
        if name in defaults:
            meaning, _, example = comments.get(name, "").partition(", e.g. ")
            meaning = meaning.replace("None:", "null:").replace("False:", "false:")  # as recipes write them
            entries.append(Entry(prefix + name, describe_type(hint), written(defaults[name]), meaning, example))
    return entries


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
