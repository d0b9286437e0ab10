"""How a check says that something is wrong: in one line, in the words of the user's file."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedhead.core.system.errors import FedheadError
from fedhead.executors.client.stack_errors import CannotStack

PACKAGE = Path(__file__).parents[1]
LIBRARY = Path(linecache.__file__).parent  # Python's own, with the installed packages


class CheckFailed(FedheadError, AssertionError):
    """A component does not keep what fedhead relies on; the message says what to fix."""


class Check(NamedTuple):
    """One check that was made, or the reason why it was not."""

    name: str
    skipped: str | None = None


class Skipped(Exception):
    """Raised inside a check that does not apply; the message says why."""


def run_checks(checks: dict[str, Callable[[], None]]) -> list[Check]:
    """Make the checks in order; the first that fails ends them."""
    done = []
    for name, check in checks.items():
        try:
            check()
        except Skipped as reason:
            done.append(Check(name, str(reason)))
        else:
            done.append(Check(name))
    return done


def need_flower(wanted: bool) -> None:
    """Skip a check that needs Flower where it is not wanted or not installed."""
    if not wanted:
        raise Skipped("flower=False")
    if find_spec("flwr") is None:
        raise Skipped("flwr is not installed: pip install 'fedhead[flower]'")


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
    except CannotStack as error:  # the line itself says more here than the advice to users
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise CheckFailed(f"{_place(cause, owner)}: {_reason(cause)}, {doing}{_hint(cause)}") from error
    except FedheadError as error:
        raise CheckFailed(str(error) if str(error).startswith(owner) else f"{owner}: {error}") from error
    except Exception as error:  # a user's hook may raise anything
        raise CheckFailed(f"{_place(error, owner)}: {_reason(error)}, {doing}{_hint(error)}") from error


def _place(error: Exception, owner: str) -> str:
    """The user's last line that an error passed through: in the component itself, or else in any file of theirs."""
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
