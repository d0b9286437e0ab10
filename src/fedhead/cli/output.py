"""What commands print: tables on the standard output, progress on the standard error."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from fedhead.engine.metrics import Row


def console() -> Console:
    """The standard output; wide where it is no terminal, so that tables are not wrapped in files and pipes."""
    from rich.console import Console

    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=200)


def print_results(lines: list[Any]) -> None:
    """The table of methods x accuracy, mean and deviation over seeds."""
    from rich.table import Table
    from rich.text import Text

    from fedhead.report import tables

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


class Stopped(Exception):
    """The user interrupted a command; the message says how to go on."""


@contextmanager
def interruptible(message: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C into `Stopped`, with a message made at that moment."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(message()) from None


@contextmanager
def progress(
    rounds: int, quiet: bool, finished: int = 0, resumed: Sequence[int] = ()
) -> Iterator[Callable[[str, Row], None]]:
    """A progress bar on the standard error; plain lines where that is no terminal.

    Args:
        rounds: All rounds, also those of earlier.
        quiet: Show nothing.
        finished: Rounds of runs that are finished, which are not reported again.
        resumed: The round from which each resumed run goes on. Its rounds up to there are reported again at once, and
            count neither as news nor in the time that is left.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    earlier = Counter(number for last in resumed for number in range(1, last + 1))
    if not quiet and console.is_terminal:
        with bar(console, rounds, finished + sum(resumed)) as (_, advance):
            yield lambda label, row: None if _is_earlier(earlier, row) else advance(label, row)
        return

    def line(label: str, row: Row) -> None:
        if not quiet and not _is_earlier(earlier, row):
            print(f"{label}: round {row['round']}{_accuracy(row)}", file=sys.stderr, flush=True)

    yield line


def _is_earlier(earlier: Counter[int], row: Row) -> bool:
    """Whether a round is one of an earlier process; each of those is reported once."""
    earlier[row["round"]] -= 1
    return earlier[row["round"]] >= 0


@contextmanager
def bar(console: Console, rounds: int, done: int) -> Iterator[tuple[Progress, Callable[[str, Row], None]]]:
    """A progress bar that begins with some rounds done; the time that is left follows from those since."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description:<36}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("starting", total=rounds, completed=done)

        def advance(label: str, row: Row) -> None:
            shown.update(task, advance=1, description=f"{label}, round {row['round']}{_accuracy(row)}")

        yield shown, advance


def _accuracy(row: Row) -> str:
    """The accuracy of a round: the global model's, or where there is none the clients' own, named as such."""
    for name, words in (("accuracy", "accuracy"), ("personal", "personal accuracy")):
        if row.get(name) is not None:
            return f", {words} {row[name]:.2f} %"
    return ""
