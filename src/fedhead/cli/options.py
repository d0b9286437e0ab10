"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedhead.core.system.assignments import refuse_repeated
from fedhead.core.system.errors import require


def once(texts: list[str] | None) -> list[str] | None:
    """Check that no key is given twice in KEY=VALUE assignments."""
    refuse_repeated(texts or ())
    return texts


Assignments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides; values are YAML.", callback=once),
]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in recipe's name, or a YAML file.")]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="The folder of the data sets. [default: $FEDHEAD_DATA, else ~/.cache/fedhead]"),
]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, or one of several GPUs as in cuda:1.")]
ColumnWidth = Annotated[int, typer.Option(min=1, max=2, help="Columns of a page that a figure spans: 3.3 or 6.9 in.")]
ExecutorName = Annotated[
    str,
    typer.Option(help="auto: the fastest in a short trial; one that `fedhead ls executors` lists; or your own."),
]
Minutes = Annotated[float | None, typer.Option(min=0, max=1e7, help="Begin no run after so many minutes.")]
Shard = Annotated[str | None, typer.Option(metavar="K/N", help="Only the K-th of N parts, as one job of an array.")]
Devices = Annotated[
    str | None, typer.Option(metavar="LIST", help="Share the runs among these GPUs, such as 0,1: a process for each.")
]
ClaimsFolder = Annotated[Path | None, typer.Option("--claims", hidden=True)]  # see studies.devices.on_each
AllowChangedCode = Annotated[
    bool, typer.Option("--allow-changed-code", help="Go on although your own code has changed since.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check and list the cells, run nothing.")]
TableAsJson = Annotated[bool, typer.Option("--json", help="Print the table as JSON.")]


Engine = Annotated[
    Literal["local", "shared"],
    typer.Option(help="local: run after run; shared: at once, other seeds and splits in one stack, which fills a GPU."),
]
Precision = Annotated[
    Literal["fp32", "tf32", "bf16"],
    typer.Option(help="float32; with TF32 in a GPU's matrix products; or layers in bfloat16, weights in float32."),
]
Compile = Annotated[
    Literal["auto", "wait", "never"],
    typer.Option(help="On a GPU: compile long runs while they train (auto), before the first round (wait), or never."),
]


def words(text: str) -> list[str]:
    """Split a text at commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str | None) -> int | list[int] | None:
    """Parse a number or a comma-separated list; "7," is a list of one number."""
    try:
        if text is None or "," not in text:
            return None if text is None else int(text)
        numbers = [int(word) for word in words(text)]
    except ValueError:
        numbers = []
    require(
        numbers and min(numbers) >= 0 and len(set(numbers)) == len(numbers),
        f"{option} {text!r}: write how many (3), or which ones, different and at least 0 (7,8,9)",
    )
    return numbers
