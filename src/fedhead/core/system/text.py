"""Escaping of untrusted text for output: one short line without control characters."""

from __future__ import annotations


def printable(text: object, limit: int = 500) -> str:
    r"""Escape untrusted text as one short line without control characters.

    Newlines, terminal codes and invisible characters are escaped, so that a text can neither forge a line of a log nor
    control the terminal.

    Args:
        text: Text, or an object that is converted with `str`.
        limit: Maximum number of characters.

    >>> printable("red \x1b[31m\nalert")
    'red \\x1b[31m\\nalert'
    >>> printable("abcdef", limit=3)
    'abc …'
    """
    whole = str(text)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole[:limit])
    return shown if len(whole) <= limit and len(shown) <= limit else f"{shown[:limit]} …"
