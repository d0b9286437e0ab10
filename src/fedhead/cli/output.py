"""What commands print: tables on the standard output, progress on the standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedhead.engine.metrics import Row

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """The standard output; wide where nobody watches, so that tables stay whole in files and pipes."""
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


@contextmanager
def progress(rounds: int, quiet: bool) -> Iterator[Callable[[str, Row], None]]:
    """A progress bar on the standard error; plain lines where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:

        def line(label: str, row: Row) -> None:
            if not quiet:
                print(f"{label}: round {row['round']}{_accuracy(row)}", file=sys.stderr, flush=True)

        yield line
        return
    columns = (
        TextColumn("{task.description:<36}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=rounds)

        def advance(label: str, row: Row) -> None:
            bar.update(task, advance=1, description=f"{label}, round {row['round']}{_accuracy(row)}")

        yield advance


def _accuracy(row: Row) -> str:
    name = "accuracy" if row.get("accuracy") is not None else "personal"
    return f", {row[name]:.2f} %" if row.get(name) is not None else ""
