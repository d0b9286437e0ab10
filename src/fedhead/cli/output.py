"""Printing of tables, and messages about interrupted commands."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedhead.core.system.errors import FedheadError, machine_fault
from fedhead.core.system.process import raising_on_term
from fedhead.studies.writable import Unwritable

if TYPE_CHECKING:
    from rich.console import Console

    from fedhead.report.table import Table


def console() -> Console:
    """Return the standard output; wide where it is no terminal, so that tables are not wrapped in files and pipes."""
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def print_table(table: Table, right: bool = True) -> None:
    """Print a table under its title.

    Args:
        table: The table.
        right: Whether all columns but the first are right-aligned.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, header_style="bold")
    for column, heading in enumerate(table.head):
        shown.add_column(Text(heading), justify="right" if right and column else "left", no_wrap=column == 0)
    for row in table.cells():
        shown.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
    if table.title:
        console().print(Text(table.title, style="italic"))
    console().print(shown)


GOES_ON = "the same command goes on where it stopped"


class Stopped(Exception):
    """The user interrupted a command; the message says how to go on.

    Args:
        message: For the user.
        code: The exit code of the command.
    """

    def __init__(self, message: str, code: int = 128 + signal.SIGINT):
        super().__init__(message)
        self.code = code


class _Terminated(KeyboardInterrupt):
    """A SIGTERM, as a cluster sends it when a job's time is up: what Ctrl-C ends, it ends the same way."""


@contextmanager
def interruptible(message: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into `Stopped`, with a message made at that moment."""
    try:
        with raising_on_term(_Terminated()):
            yield
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT
        raise Stopped(message(), 128 + number) from None


@contextmanager
def resumable() -> Iterator[None]:
    """Say how a command continues that was interrupted, or ended by a full disk or too little memory."""
    try:
        with interruptible(lambda: f"stopped; {GOES_ON}"):
            yield
    except Unwritable:  # says itself what to do: another command, with another folder
        raise
    except Exception as error:  # the disk may be full anywhere; what is no fault of the machine is raised again
        if (fault := machine_fault(error)) is None:
            raise
        raise FedheadError(f"{fault}; {GOES_ON}") from error
