"""The papers' published values, and which of them a cell is compared with."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fedhead.core.errors import BadInput
from fedhead.experiment.recipe import Recipe
from fedhead.experiment.tables import Cell


@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Every value of the papers' tables, one row each."""
    with (Path(__file__).parent / "published.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def published(cell: Cell) -> tuple[float, float | None] | None:
    """The published mean and deviation of a cell, or None if the paper gives no value for it."""
    place = published_place(cell)
    row = {"mean": ""} if place is None else published_rows()[place]
    mean = _number(row["mean"])
    return None if mean is None else (mean, _number(row["std"]))


def published_place(cell: Cell) -> int | None:
    """Which of `published_rows` a cell is compared with: cells of two tables may be compared with one."""
    rows = enumerate(published_rows())
    found = [place for place, row in rows if all(row[k] == v for k, v in cell.find.items())]
    if len(found) > 1:
        raise BadInput(f"{cell.name}: {len(found)} published values fit {dict(cell.find)}; name more columns in `find`")
    return found[0] if found else None


def _number(text: str) -> float | None:
    """A published value; sizes such as 22 KB in bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?: ([KM])B)?", text.strip())
    return float(match[1]) * {None: 1, "K": 1024, "M": 1024**2}[match[2]] if match else None


_STAGES = {"none": None, "": None, "ccvr": "ccvr", "whole-data calibration": "recalibrate"}
_METRICS = {"accuracy": ("accuracy", "generalization"), "personal": ("personalization",)}


def published_for(recipe: Recipe, stage: str | None, metric: str = "accuracy") -> list[str]:
    """Return what the papers report for the data, the partition, the clients and the method of a recipe.

    Models, rounds and step sizes may be others than the papers': `fedhead reproduce` sets those as well.

    Args:
        recipe: The recipe of a run.
        stage: The stage after which is compared; None: after the rounds.
        metric: "accuracy" or "personal".

    Returns:
        Texts such as "58.55 ± 0.98 (ccvr, table 1)", each value once.
    """
    asked = {"dataset": recipe.dataset, "partition": recipe.partition, "method": recipe.method}
    places: dict[str, list[str]] = {}
    for row in published_rows():
        same = all(row[key] == value for key, value in asked.items()) and row["metric"] in _METRICS.get(metric, ())
        if not same or row["stage"] not in _STAGES or _STAGES[row["stage"]] != stage or _number(row["mean"]) is None:
            continue
        if (_number(row["clients"]), _number(row["participation"])) == (recipe.clients, recipe.participation):
            value = f"{row['mean']} ± {row['std']}" if row["std"] else row["mean"]
            places.setdefault(value, []).append(f"{row['paper']}, table {row['table']}")
    return [f"{value} ({found[0]})" for value, found in places.items()]
