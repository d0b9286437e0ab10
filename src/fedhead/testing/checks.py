"""Runner of checks; a failure is one line in the words of the user's file."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedhead.core.system.errors import FedheadError, unknown
from fedhead.executors.client.stack_errors import CannotStack

PACKAGE = Path(__file__).parents[1]
LIBRARY = Path(linecache.__file__).parent  # Python's own, with the installed packages


T = TypeVar("T")


class CheckFailed(FedheadError, AssertionError):
    """Violation of a component's contract; the message says what to fix."""


class Check(NamedTuple):
    """Name of a check that passed, or the reason why it was skipped."""

    name: str
    skipped: str | None = None


class Skipped(Exception):
    """Raised inside a check that does not apply; the message says why."""


def run_checks(owner: str, subject: T, checks: Sequence[Callable[[T], None]], skip: Sequence[str] = ()) -> list[Check]:
    """Run checks in order; the first that fails ends them.

    Args:
        owner: The component's name, for error messages.
        subject: Argument of every check.
        checks: Functions named `check_NAME`.
        skip: Names of checks to leave out.

    Raises:
        BadInput: If `skip` names a check that does not exist.
        CheckFailed: By the first check that fails.
    """
    named = {check.__name__.removeprefix("check_"): check for check in checks}
    for name in skip:
        if name not in named:
            raise unknown("check", name, named)
    results = []
    for name, check in named.items():
        reason = "skipped by the caller" if name in skip else None
        try:
            if reason is None:
                with as_check_failure(owner, f"in the check {name!r}"):
                    check(subject)
        except Skipped as skipped:
            reason = str(skipped)
        results.append(Check(name, reason))
    return results


def require(condition: object, message: str) -> None:
    """Raise `CheckFailed` with a message unless a condition holds."""
    if not condition:
        raise CheckFailed(message)


@contextmanager
def as_check_failure(owner: str, doing: str) -> Iterator[None]:
    """Turn any error inside into a `CheckFailed` that names the user's line that it came from.

    Args:
        owner: The component's name.
        doing: What was being done, such as "one client after another".
    """
    try:
        yield
    except (CheckFailed, Skipped):
        raise
    except Exception as error:  # a user's hook may raise anything
        if isinstance(error, FedheadError) and not isinstance(error, CannotStack):
            text = str(error) if str(error).startswith(owner) else f"{owner}: {error}"
        else:  # of CannotStack the line itself says more here than the advice to users
            cause = error.__cause__ if isinstance(error, CannotStack) else error
            cause = cause if isinstance(cause, Exception) else error
            text = f"{_place(cause, owner)}: {_reason(cause)}, {doing}{_hint(cause)}"
        raise CheckFailed(text) from error


def _place(error: Exception, owner: str) -> str:
    """Return the user's last line that an error passed through, preferably in the component itself."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(code, line) for code, line in frames if code.co_qualname.split(".")[-2:-1] == [owner]]
    theirs = [(code, line) for code, line in frames if not Path(code.co_filename).is_relative_to(LIBRARY)]
    theirs = [(code, line) for code, line in theirs if not Path(code.co_filename).is_relative_to(PACKAGE)]
    if not (own or theirs):
        return owner
    code, line = (own or theirs)[-1]
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_qualname.rpartition('<locals>.')[2]} ({Path(code.co_filename).name}, line {line}: {text})"


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].split('. ')[0].rstrip('.')}" if lines else type(error).__name__


def _hint(error: Exception) -> str:
    if any(word in str(error) for word in ("vmap", ".item()", "data-dependent", "functorch")):
        return (
            ": hooks run for many clients at once, so they can't look at single numbers; instead of .item(), "
            "`if tensor` or tensor[mask] use torch.where or multiply by a mask"
        )
    return ""
