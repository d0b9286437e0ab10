"""Progress of a run: a bar in terminals and notebooks, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from fedhead.engine.rounds.observer import Observer, Snapshot
from fedhead.metrics.records import Row

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress


class Progress:
    """Progress bar on standard error or in a notebook; plain lines elsewhere.

    Args:
        quiet: Show nothing.
        console: Console of the bar; None: standard error.

    Attributes:
        quiet: True if nothing is shown.
        bar: Progress bar of rich, or None.
        task: Task of the bar.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None):
        from rich.console import Console

        self.quiet = quiet
        self.bar: RichProgress | None = None
        console = console or Console(stderr=True, highlight=False)
        # In a notebook rich uses ipywidgets.
        if not quiet and (console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets"))):
            self.bar = _bar(console)
            self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def observer(self, label: str, rounds: int) -> Observer:
        """Create the observer of a run with a label and a number of rounds."""
        return _RunProgress(self, label, rounds)


class _RunProgress(Observer):
    """Progress of one run."""

    def __init__(self, progress: Progress, label: str, rounds: int):
        self._progress, self._label, self._rounds = progress, label, rounds

    def start(self, name: str, resume: Snapshot | None) -> None:
        """Count the rounds before resuming as done; they don't affect the remaining time."""
        if (bar := self._progress.bar) is not None:
            done = 0 if resume is None else resume.round
            bar.reset(self._progress.task, total=self._rounds, completed=done)

    def round(self, row: Row, snapshot: Snapshot) -> None:
        """Show a round."""
        text = f"{self._label}: round {row['round']}{_figures(row)}"
        if (bar := self._progress.bar) is not None:
            bar.update(self._progress.task, advance=1, description=text)
        elif not self._progress.quiet:
            print(text, file=sys.stderr, flush=True)


def _bar(console: Console) -> RichProgress:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description:<36}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return RichProgress(*columns, console=console, transient=True)


def _figures(row: Row) -> str:
    """Format the training loss of a round, and its accuracy or personal accuracy."""
    loss = "" if row.get("train_loss") is None else f", loss {row['train_loss']:.3f}"
    for name, label in (("accuracy", "accuracy"), ("personal", "personal accuracy")):
        if row.get(name) is not None:
            return f"{loss}, {label} {row[name]:.2f} %"
    for name, label in (("test_loss", "test loss"), ("personal_loss", "personal test loss")):
        if row.get(name) is not None:  # a regression has no accuracy
            return f"{loss}, {label} {row[name]:.3f}"
    return loss


@contextmanager
def counter(total: int, label: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of counted items on standard error or in a notebook; nothing elsewhere.

    Args:
        total: Number of items.
        label: Label of the bar.
        quiet: Show nothing.
    """
    with Progress(quiet) as progress:
        if (bar := progress.bar) is None:
            yield lambda count: None
            return
        bar.update(progress.task, description=label, total=total)
        yield lambda count: bar.update(progress.task, advance=count)
