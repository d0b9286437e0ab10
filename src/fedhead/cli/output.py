"""What commands print."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedhead.core.system.errors import FedheadError, machine_fault
from fedhead.core.system.process import raising_on_term
from fedhead.runs.writable import Unwritable

if TYPE_CHECKING:
    from rich.console import Console

    from fedhead.report.text_table import TextTable


def console() -> Console:
    """The standard output; wide where it is no terminal, so that tables are not wrapped in files and pipes."""
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def print_results(lines: list[Any]) -> None:
    """The table of methods x accuracy, mean and deviation over seeds."""
    from rich.table import Table
    from rich.text import Text

    from fedhead.report.compare import tables

    personal = any(line.personal for line in lines)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method")
    more = ["not counted"] if any(line.uncounted for line in lines) else []
    for column in ("accuracy", *(["personal"] if personal else []), "seeds", *more):
        table.add_column(column, justify="right", no_wrap=True)
    for line in lines:
        own = [tables.mean_std(line.personal)] if personal else []
        table.add_row(
            Text(line.label),
            tables.mean_std(line.accuracy),
            *own,
            str(len(line.seeds)),
            *([line.uncounted] if more else []),
        )
    console().print(table)


def print_tables(tables: list[TextTable]) -> None:
    """Tables of texts, each under its title."""
    from rich.table import Table
    from rich.text import Text

    for number, one in enumerate(tables):
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for column, heading in enumerate(one.head):
            shown.add_column(Text(heading), justify="right" if column else "left")
        for i, row in enumerate(one.body):
            shown.add_row(*(Text(cell, style="bold" if (i, j) in one.bold else "") for j, cell in enumerate(row)))
        console().print(Text(("\n" if number else "") + one.title, style="italic"))
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
    """Say of a command that was interrupted, or that a full disk or too little memory ended, how it goes on."""
    try:
        with interruptible(lambda: f"stopped; {GOES_ON}"):
            yield
    except Unwritable:  # says itself what to do: another command, with another folder
        raise
    except Exception as error:  # the disk may be full anywhere; what is no fault of the machine is raised again
        if (fault := machine_fault(error)) is None:
            raise
        raise FedheadError(f"{fault}; {GOES_ON}") from error
