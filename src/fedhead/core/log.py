"""Notices: one line on stderr when the library does something other than what was asked, and why."""

from __future__ import annotations

import sys

_said: set[str] = set()


def warn_once(text: str) -> None:
    """Say it once a process."""
    if text not in _said:
        _said.add(text)
        print(f"notice: {text}", file=sys.stderr)
