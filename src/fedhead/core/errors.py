"""Errors that a user can fix: each message states what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedheadError(Exception):
    """The base class of all errors that are not bugs; the message is one line for the user."""


class BadInput(FedheadError, ValueError):
    """An invalid request by the user; the command line exits with code 2."""


class Diverged(FedheadError, ArithmeticError):
    """Training produced non-finite numbers; the command line exits with code 1."""


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """Return the error for an unknown name, suggesting the closest known one.

    >>> str(unknown("method", "fedporx", ["fedavg", "fedprox"]))
    "unknown method 'fedporx': did you mean 'fedprox'? Known: fedavg, fedprox"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return BadInput(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")
