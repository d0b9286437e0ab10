"""The command that runs a table of a paper by name: reproduce."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhead.cli import app
from fedhead.cli.inspecting import DataFolder, console
from fedhead.cli.running import Device, Executor, Precision

if TYPE_CHECKING:
    from fedhead.experiment.reproduce import Outcome


class Scale(StrEnum):
    """How large a version of a table to run."""

    full = "full"
    small = "small"


@app.command()
def reproduce(
    table: Annotated[str | None, typer.Argument(metavar="[PAPER/TABLE]", help="Which table; none: list them.")] = None,
    cells: Annotated[str, typer.Option(help="Only cells whose name holds one of these texts (comma-separated).")] = "",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds, from 0. [default: the paper's]")] = None,
    scale: Annotated[Scale, typer.Option(help="The paper's settings, or a few minutes on a CPU.")] = Scale.full,
    out: Annotated[Path | None, typer.Option(help="Where its runs go. [default: runs/PAPER/TABLE]")] = None,
    data: DataFolder = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    executor: Annotated[Executor, typer.Option(help="One client after another, or stacked.")] = Executor.auto,
    precision: Annotated[Precision, typer.Option(help="What to compute in.")] = Precision.fp32,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the cells, run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Run a table of a paper: our mean ± deviation beside the published one, and the difference.

    A cell's name is its choices, as --dry-run lists them; "cifar10-0.1 fedavg" picks what holds both words. Started
    again, it goes on where it was stopped, and finished runs are not run again.

    \b
    Examples:
      fedhead reproduce
      fedhead reproduce ccvr/table2 --scale small
      fedhead reproduce ccvr/table2 --cells "cifar10-0.1 fedavg,cifar10-0.1 moon" --seeds 3 --device cuda
      fedhead reproduce ccvr/table3 --dry-run
    """
    from fedhead.experiment import tables

    if table is None:
        for name in tables.names():
            print(f"{name:<24}{tables.load(name).title}")
        return
    found = tables.load(table)
    pick = [text.strip() for text in cells.split(",") if text.strip()]
    if dry_run:
        for cell in found.cells(scale.value, pick):
            print(cell.name)
        return
    from fedhead.experiment.reproduce import reproduce as carry_out
    from fedhead.experiment.run import Settings

    folder = out or Path("runs") / (table if scale is Scale.full else f"{table}-small")
    settings = Settings(data, device.value, executor.value, precision.value)
    outcome = carry_out(
        found,
        folder,
        scale=scale.value,
        pick=pick,
        seeds=seeds,
        settings=settings,
        say=lambda s: print(s, file=sys.stderr),
    )
    if as_json:
        print((folder / "table.json").read_text(encoding="utf-8"), end="")
    else:
        _show(outcome, folder)


def _show(outcome: Outcome, folder: Path) -> None:
    from rich.table import Table

    shown = Table(title=outcome.title, caption=outcome.note(), title_justify="left", caption_justify="left")
    several = len({f.metric for f in outcome.figures}) > 1
    for axis in outcome.axes:
        shown.add_column(axis)
    for column in [*(["metric"] if several else []), "ours", "published", "difference"]:
        shown.add_column(column, justify="left" if column == "metric" else "right")
    for f in outcome.figures:
        shown.add_row(
            *(f.choices[axis] for axis in outcome.axes),
            *([f.metric] if several else []),
            _plus_minus(f.mean, f.deviation),
            _plus_minus(f.published, f.published_deviation),
            "–" if f.difference is None else f"{f.difference:+.2f}",
        )
    console().print(shown)
    print(f"written to {folder / 'table.csv'} and {folder / 'table.json'}")


def _plus_minus(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return "–"
    if mean >= 1000:  # bytes
        return f"{mean:,.0f}"
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
