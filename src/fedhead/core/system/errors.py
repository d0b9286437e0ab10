"""Errors that a user can fix: each message states what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedhead.core.system.text import printable

_LONGEST = 2000  # characters of a message


class FedheadError(Exception):
    """The base class of all errors that are not bugs; the message is one line for the user.

    Args:
        text: The message. It may quote what a file holds, so it is cut and control characters are escaped.
    """

    def __init__(self, text: object = ""):
        super().__init__(printable(text, _LONGEST))


class BadInput(FedheadError, ValueError):
    """An invalid request by the user; the command line exits with code 2."""


class Unreadable(BadInput):
    """A file that is missing, cut or damaged, in contrast to one that can be read and holds something wrong."""


# What the operating system says of the machine; anything else (a path that is not there, a folder without
# permission) is for the user to correct.
_MACHINE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENOLCK),
    *(errno.ENOMEM, errno.EMFILE, errno.ENFILE),
}
_NO_MEMORY = ("t allocate memory", "not enough memory", "out of memory")  # torch's words: twice a CPU's, and a GPU's


class Diverged(FedheadError, ArithmeticError):
    """Training produced non-finite numbers; the command line exits with code 1."""


def require(condition: object, message: str) -> None:
    """Raise `BadInput` with a message unless a condition holds.

    >>> require(2 > 1, "clients: give at least one")
    """
    if not condition:
        raise BadInput(message)


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """Return the error for an unknown name, suggesting the closest known one.

    >>> str(unknown("method", "fedporx", ["fedavg", "fedprox"]))
    "unknown method 'fedporx': did you mean 'fedprox'? Known: fedavg, fedprox"
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return BadInput(f"unknown {kind} {name!r}{hint} Known: {', '.join(names)}")


def require_known(kind: str, name: str, names: Iterable[str]) -> str:
    """Return a name, or raise the error of `unknown` if it is not among those that there are."""
    names = list(names)
    if name not in names:
        raise unknown(kind, name, names)
    return name


def first_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text, if it has one.

    >>> first_line(ValueError("one\\ntwo")), first_line(AssertionError())
    ('ValueError: one', 'AssertionError')
    """
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def machine_fault(error: BaseException | None) -> str | None:
    """Return what is wrong with the machine if that is why an error was raised: a full disk, no memory left, a GPU's.

    After an error of a GPU that is not about its memory, the process can't compute on it any more.

    >>> machine_fault(OSError(errno.ENOSPC, "No space left on device", "runs/a"))
    "[Errno 28] No space left on device: 'runs/a'"
    >>> machine_fault(RuntimeError("CUDA error: an illegal memory access was encountered"))
    'CUDA error: an illegal memory access was encountered'
    >>> machine_fault(ValueError("three")) is None
    True
    """
    while error is not None:
        if isinstance(error, MemoryError):
            return "out of memory"
        if isinstance(error, OSError) and error.errno in _MACHINE:
            return str(error)
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY):
            return "out of memory"
        if isinstance(error, RuntimeError) and str(error).startswith("CUDA error"):
            return str(error).splitlines()[0]
        error = error.__cause__
    return None


@contextmanager
def user_code(title: str) -> Iterator[None]:
    """Turn whatever a user's own function raises into one line that names the function.

    Args:
        title: What the function is, such as `metric mine.py:recall`.
    """
    try:
        yield
    except FedheadError:
        raise
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise BadInput(f"{title}: the function raised {first_line(error)}") from error
