"""Arguments and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Assignments = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides; values are YAML.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A built-in recipe's name, or a YAML file.")]
DataFolder = Annotated[
    Path | None, typer.Option("--data", help="The folder of the data sets. [default: $FEDHEAD_DATA]")
]
ColumnWidth = Annotated[int, typer.Option(min=1, max=2, help="Columns of a page that a figure spans: 3.3 or 6.9 in.")]
ExecutorName = Annotated[
    str, typer.Option(help="loop: clients one by one; stack; lanes: one GPU stream each; auto; or your own.")
]


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class TransportName(StrEnum):
    """What carries messages between the server and its clients."""

    simulation = "simulation"
    flower = "flower"


class Precision(StrEnum):
    """What to compute in."""

    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
