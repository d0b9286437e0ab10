"""Text from elsewhere, made safe to show: one line, no control characters, not too long."""

from __future__ import annotations


def printable(text: object, limit: int = 500) -> str:
    """Return a text of unknown origin as one short line without control characters.

    Newlines, terminal codes and invisible characters are shown as their escapes, so that a text can neither forge a
    line of a log nor act on the terminal that shows it.

    Args:
        text: What is shown; anything but a text is converted to one.
        limit: The most characters that are shown.

    >>> printable("red \\x1b[31m\\nalert")
    'red \\\\x1b[31m\\\\nalert'
    >>> printable("abcdef", limit=3)
    'abc …'
    """
    whole = str(text)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in whole[:limit])
    return shown if len(whole) <= limit and len(shown) <= limit else f"{shown[:limit]} …"
