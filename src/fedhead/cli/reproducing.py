"""The command that runs a table of a paper by name: reproduce."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedhead.cli.app import app
from fedhead.cli.options import DataFolder, Device, Executor, Precision
from fedhead.cli.output import console

if TYPE_CHECKING:
    from fedhead.experiment.reproduce import Outcome
    from fedhead.experiment.tables import Cell


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
    together: Annotated[
        bool | None,
        typer.Option(
            "--together/--one-by-one",
            help="Train a method's seeds and splits in one stack. [default: on a GPU, where a stack is fastest]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the cells, run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table, or what is listed, as JSON.")] = False,
) -> None:
    """Run a table of a paper: our mean ± deviation beside the published one, and the difference.

    A cell's name is its choices, as --dry-run lists them; "cifar10-0.1 fedavg" picks what holds both words. Started
    again, it goes on where it was stopped, and finished runs are not run again. Each seed has a run of its own, also
    of those that train together: what was stopped can go on either way, and a seed that is behind catches up first.

    \b
    Examples:
      fedhead reproduce
      fedhead reproduce ccvr/table2 --scale small
      fedhead reproduce ccvr/table2 --cells "cifar10-0.1 fedavg,cifar10-0.1 moon" --seeds 3 --device cuda
      fedhead reproduce ccvr/table3 --dry-run
    """
    from fedhead.experiment import tables

    if table is None:
        titles = {name: tables.load(name).title for name in tables.names()}
        print(json.dumps(titles) if as_json else "\n".join(f"{name:<24}{title}" for name, title in titles.items()))
        return
    found = tables.load(table)
    pick = [text.strip() for text in cells.split(",") if text.strip()]
    if dry_run:
        listed = found.cells(scale.value, pick)
        print(json.dumps([_described(cell) for cell in listed]) if as_json else "\n".join(c.name for c in listed))
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
        together=together,
        say=lambda s: print(s, file=sys.stderr),
    )
    if as_json:
        print((folder / "table.json").read_text(encoding="utf-8"), end="")
    else:
        _show(outcome, folder)


def _described(cell: Cell) -> dict[str, object]:
    """A cell before it is run: what it stands for, and the recipe of its first seed."""
    from fedhead.experiment.tables import published

    mean, deviation = published(cell) or (None, None)
    return {
        "cell": cell.name,
        "choices": dict(cell.choices),
        "metric": cell.metric,
        "published": mean,
        "published_deviation": deviation,
        "stage": cell.stage,
        "parameters": dict(cell.parameters),
        "recipe": cell.recipe(0).flat(),
    }


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
