"""Plain values: what is the same after it was written as JSON and read."""

from __future__ import annotations

from typing import Any


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text, None, or lists and dicts of such.

    >>> is_plain({"mu": [0.1, None]}), is_plain((1, 2))
    (True, False)
    """
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(is_plain, value.values()))
    return value is None or type(value) in (bool, int, float, str)
