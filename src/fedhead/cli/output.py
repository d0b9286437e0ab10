"""Printing of tables, and messages about interrupted commands."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedhead.core.system.errors import FedheadError, machine_fault
from fedhead.core.system.process import raising_on_term
from fedhead.core.system.text import printable
from fedhead.studies.writable import Unwritable

if TYPE_CHECKING:
    from rich.console import Console

    from fedhead.metrics.records import Row
    from fedhead.report.table import Table


def console() -> Console:
    """Return a console on standard output, wide in files and pipes so that tables are not wrapped."""
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def print_table(table: Table, left: int = 1) -> None:
    """Print a table under its title.

    Args:
        table: Table.
        left: Number of left-aligned columns.
    """
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=None, pad_edge=False, header_style="bold")
    for column, heading in enumerate(table.head):
        shown.add_column(Text(printable(heading)), justify="left" if column < left else "right", no_wrap=column == 0)
    for row in table.cells():
        shown.add_row(*(Text(printable(cell.text), style="bold" if cell.best else "") for cell in row))
    if table.title:
        console().print(Text(printable(table.title), style="italic"))
    console().print(shown)


GOES_ON = "the same command goes on where it stopped"


class Stopped(Exception):
    """Interruption of a command by the user; the message says how to resume.

    Args:
        message: Message for the user.
        code: Exit code of the command.
        out: Folder of the interrupted run; None: the message is complete.
    """

    def __init__(self, message: str, code: int, out: Path | None = None):
        super().__init__(message)
        self.code, self.out = code, out


class _Terminated(KeyboardInterrupt):
    """SIGTERM, such as from a cluster at the end of a job's time; handled like Ctrl-C."""


@contextmanager
def interruptible(message: str = "stopped") -> Iterator[None]:
    """Convert Ctrl-C and SIGTERM to `Stopped`, with the message of an interrupted run if any."""
    try:
        with raising_on_term(_Terminated()):
            yield
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error.__cause__ or error, _Terminated) else signal.SIGINT
        out = getattr(error, "out", None)  # set for `RunInterrupted`
        raise Stopped(str(error) or message, 128 + number, out) from None


@contextmanager
def resumable() -> Iterator[None]:
    """Add instructions for resuming to errors: an interruption, a full disk or insufficient memory."""
    try:
        with interruptible(f"stopped; {GOES_ON}"):
            yield
    except Unwritable:  # its message already says what to do
        raise
    except Exception as error:  # convert only failures of the machine
        if (fault := machine_fault(error)) is None:
            raise
        raise FedheadError(f"{error if isinstance(error, FedheadError) else fault}; {GOES_ON}") from error


# -- the result of a run -------------------------------------------------------------------------------
def print_run(result: Row) -> None:
    """Print the results of a run, with its guarantees of differential privacy."""
    from fedhead.api.record import RecordedResult
    from fedhead.privacy.guarantee import total_epsilon
    from fedhead.runs.read_runs import load_run

    print(f"accuracy    {_percent(result['accuracy'])}")
    if result["personal"] is not None:
        print(f"personal    {_percent(result['personal'])}")
    for name, value in result["metrics"].items():
        why = result.get("notes", {}).get(name, "no value")
        print(f"{name:<11} {f'– ({why})' if value is None else f'{value:.4f}'}")
    for name, row in result["stages"].items():
        shown = [f"{word} {_percent(row[word])}" for word in ("accuracy", "personal") if row[word] is not None]
        print(printable(f"  + {name}: {', '.join(shown)}"))
    recorded = RecordedResult(load_run(Path(result["run"])))
    if recorded.stopped is not None:
        print(f"stopped     {recorded.stopped}")
    guarantees = recorded.guarantees
    for line in [*guarantees, total_epsilon(guarantees)]:
        if line is not None:
            print(f"privacy     {line}")
    print(f"traffic     {_traffic(result)}")
    if each := result.get("client_bytes"):
        print(f"            per client and round {_bytes(each['up'])} up, {_bytes(each['down'])} down")
    compiled = result.get("compile_seconds") or 0.0
    print(f"time        {result['seconds']:.1f} s" + (f", after {compiled:.1f} s of compiling" if compiled else ""))
    if (started := result.get("compiled_from")) is not None:
        print(f"compiled    from round {started} on")
    print(f"run         {result['run']}")


def _traffic(result: Row) -> str:
    """Format the traffic of rounds and of stages separately: a stage may send more than all rounds."""
    of_stages = [sum(row[f"bytes_{way}"] for row in result["stages"].values()) for way in ("up", "down")]
    of_rounds = [result[f"bytes_{way}"] - sent for way, sent in zip(("up", "down"), of_stages, strict=True)]
    texts = [f"{_bytes(up)} up, {_bytes(down)} down" for up, down in (of_rounds, of_stages)]
    return f"{texts[0]} in rounds; {texts[1]} in stages" if any(of_stages) else texts[0]


def _bytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def raise_failures(failures: Mapping[str, str]) -> None:
    """Raise an error with the failed runs, after the others are done and their table is printed.

    Args:
        failures: Reasons of failures by run name.

    Raises:
        FedheadError: If any run failed.
    """
    if failures:
        name, reason = next(iter(failures.items()))
        more = f" ({len(failures) - 1} more failed)" if len(failures) > 1 else ""
        raise FedheadError(f"{name}: {reason}{more}; fix it, and the same command runs what failed again")
