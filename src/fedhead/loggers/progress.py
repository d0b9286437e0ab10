"""The progress of a run: a bar in terminals and notebooks, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from fedhead.metrics.records import Row


@contextmanager
def progress(
    rounds: int, quiet: bool, finished: int = 0, resumed: Sequence[int] = ()
) -> Iterator[Callable[[str, Row], None]]:
    """A progress bar on the standard error or in a notebook; plain lines where that is neither.

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
    # in a notebook rich draws by ipywidgets
    if not quiet and (console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets"))):
        with bar(console, rounds, finished + sum(resumed)) as (_, advance):
            yield lambda label, row: None if _is_earlier(earlier, row) else advance(label, row)
        return

    def line(label: str, row: Row) -> None:
        if not quiet and not _is_earlier(earlier, row):
            print(f"{label}: round {row['round']}{_figures(row)}", file=sys.stderr, flush=True)

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
            shown.update(task, advance=1, description=f"{label}, round {row['round']}{_figures(row)}")

        yield shown, advance


def _figures(row: Row) -> str:
    """The training loss of a round, and its accuracy: the global model's, or the clients' own, named as such."""
    loss = "" if row.get("train_loss") is None else f", loss {row['train_loss']:.3f}"
    for name, words in (("accuracy", "accuracy"), ("personal", "personal accuracy")):
        if row.get(name) is not None:
            return f"{loss}, {words} {row[name]:.2f} %"
    for name, words in (("test_loss", "test loss"), ("personal_loss", "personal test loss")):
        if row.get(name) is not None:  # a regression has no accuracy
            return f"{loss}, {words} {row[name]:.3f}"
    return loss


@contextmanager
def counter(total: int, label: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar of something that is counted, on the standard error or in a notebook; nothing elsewhere.

    Args:
        total: How many there are.
        label: What they are.
        quiet: Show nothing.
    """
    if quiet:
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    hidden = not (console.is_terminal or (console.is_jupyter and importlib.util.find_spec("ipywidgets")))
    with Progress(*columns, console=console, transient=True, disable=hidden) as shown:
        task = shown.add_task(label, total=total)
        yield lambda more: shown.update(task, advance=more)
