"""Differences between two mappings: recipes, descriptions of objects, contents of sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_MISSING = object()


class Difference(NamedTuple):
    """Key whose values differ; None stands for a missing value."""

    key: str
    old: Any
    new: Any


def differences(old: Mapping[str, Any], new: Mapping[str, Any], ignore: Iterable[str] = ()) -> list[Difference]:
    """Return the keys whose values differ or that only one mapping has.

    >>> differences({"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0, "mu": 1})
    [Difference(key='lr', old=0.1, new=0.2), Difference(key='mu', old=None, new=1)]
    """
    keys = dict.fromkeys([*old, *new])
    return [
        Difference(key, old.get(key), new.get(key))
        for key in keys
        if key not in set(ignore) and old.get(key, _MISSING) != new.get(key, _MISSING)
    ]


def describe(changes: Sequence[Difference], text: str = "{key} was {old!r} and is now {new!r}", most: int = 8) -> str:
    """Format differences in one line.

    Args:
        changes: Differences.
        text: Format of a difference.
        most: Number of differences to list; the others are counted.

    >>> describe([Difference("lr", 0.1, 0.2)])
    'lr was 0.1 and is now 0.2'
    """
    parts = [text.format(**difference._asdict()) for difference in changes[:most]]
    return ", ".join([*parts, *([f"{len(changes) - most} more"] if len(changes) > most else [])])
