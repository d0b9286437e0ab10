"""Arguments and options shared by several commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from fedhead.cli.app import Argument, Option
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.errors import require

Assignments = Annotated[
    list[str] | None,
    Argument(
        "Recipe keys to override, such as rounds=5; values are YAML, `fedhead ls keys` lists the keys.",
        label="KEY=VALUE",
    ),
]
RecipeName = Annotated[str, Argument("Name of a built-in recipe, or a YAML file.", label="RECIPE")]
DataFolder = Annotated[Path | None, Option("Folder of the data sets. [default: $FEDHEAD_DATA, else ~/.cache/fedhead]")]
Device = Annotated[str, Option("Device: auto, cpu, cuda, or one of several GPUs as in cuda:1.")]
ColumnWidth = Annotated[int, AtLeast(1), AtMost(2), Option("Width of figures in columns of a page: 3.3 or 6.9 inches.")]
ExecutorName = Annotated[
    str, Option("Executor: auto (the fastest in a short trial), a name from `fedhead ls executors`, or your own.")
]
Minutes = Annotated[float | None, AtLeast(0), AtMost(10**7), Option("Minutes after which no further run is started.")]
Shard = Annotated[str | None, Option("Run only the K-th of N parts, as one job of an array.", label="K/N")]
Devices = Annotated[str | None, Option("GPUs that share the runs, one process each, such as 0,1.", label="LIST")]
AllowChangedCode = Annotated[bool, Option("Continue even if your own code has changed since.")]
DryRun = Annotated[bool, Option("Check and list the cells, and run nothing.")]
TableAsJson = Annotated[bool, Option("Print the table as JSON.", flag="--json")]


Labels = Annotated[
    list[str] | None, Option("Your own label of a method, a stage or a row; may be repeated.", label="NAME=TEXT")
]
Engine = Annotated[
    Literal["local", "shared"],
    Option("Order of the runs: one after another (local), or seeds and splits at once in one stack (shared)."),
]
Precision = Annotated[
    Literal["fp32", "tf32", "bf16"],
    Option("Precision: float32, float32 with TF32 matrix products on a GPU, or bfloat16 layers and float32 weights."),
]
Compile = Annotated[
    Literal["auto", "wait", "never"],
    Option("Compilation of long runs on a GPU: while they train (auto), before the first round (wait), or never."),
]


def labels_of(texts: list[str] | None) -> dict[str, str]:
    """Parse NAME=TEXT labels; NAME may contain parameters, such as "fedprox (mu=0.1)"."""
    matches = [re.fullmatch(r"((?:[^=(]|\([^)]*\))+)=(.+)", text) for text in texts or ()]
    require(all(matches), "--label: write NAME=TEXT, such as fedavg=FedAvg or 'fedprox (mu=0.1)=FedProx, strong'")
    return {match[1].strip(): match[2].strip() for match in matches if match}


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
