"""Runner of checks, with one-line failures that refer to the user's file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from fedhead.core.system.errors import FedheadError, require_known
from fedhead.core.system.failures import describe_error

T = TypeVar("T")


class CheckFailed(FedheadError, AssertionError):
    """Violation of a component's contract; the message states the fix."""


class Check(NamedTuple):
    """Name of a check that passed, or the reason why it was skipped."""

    name: str
    skipped: str | None = None


class Skipped(Exception):
    """Signal that a check does not apply; the message states the reason."""


def run_checks(owner: str, subject: T, checks: Sequence[Callable[[T], None]], skip: Sequence[str] = ()) -> list[Check]:
    """Run checks in order, up to the first failure.

    Args:
        owner: The component's name, for error messages.
        subject: Argument of every check.
        checks: Functions named `check_NAME`.
        skip: Names of checks to leave out.

    Raises:
        BadInput: If `skip` names a check that does not exist.
        CheckFailed: If a check fails.
    """
    named = {check.__name__.removeprefix("check_"): check for check in checks}
    for name in skip:
        require_known("check", name, named)
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
    """Convert errors in this context to `CheckFailed` with the line of the user's code.

    Args:
        owner: The component's name.
        doing: Description of the operation, such as "one client after another".
    """
    try:
        yield
    except (CheckFailed, Skipped):
        raise
    except Exception as error:  # a user's hook may raise anything
        text = describe_error(error)
        if not isinstance(error, FedheadError):
            text = f"{text}, {doing}"
        raise CheckFailed(text if text.startswith(owner) else f"{owner}: {text}") from error
