"""Reader of a study's trials for reports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedhead.core.system.errors import BadInput, first_line
from fedhead.studies.tune.study import read_about
from fedhead.studies.tune.trials import COLUMNS, TRIALS


class Trials(NamedTuple):
    """Trials of a study."""

    keys: list[str]  # searched keys
    table: pd.DataFrame  # all trials as texts, by column
    best: dict[str, str]  # best complete trial; the first one if several are equal
    objective: str


def read_study(folder: Path) -> Trials:
    """Read a study's trials; without the study's file, higher values count as better.

    Raises:
        BadInput: If there is no such table, it is not what `fedhead tune` writes, or no trial is complete.
    """
    about = read_about(folder) or {"objective": "value", "direction": "maximize"}
    path = folder / TRIALS
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        complete = table[table["state"] == "complete"]
        values = complete[list(COLUMNS)].astype({"trial": int, "value": float})["value"]
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{path} can't be read as a table of trials ({first_line(error)})") from error
    if values.empty:
        raise BadInput(f"{path}: no trial is complete yet")
    best = values.idxmax() if about["direction"] == "maximize" else values.idxmin()
    keys = [str(name) for name in table.columns if name not in COLUMNS]
    return Trials(keys, table, dict(table.loc[best]), about["objective"])


def study_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Return all study folders in the given paths and below them, without duplicates."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        for place in sorted(file.parent for file in path.glob(f"**/{TRIALS}")):
            folders.setdefault(place.resolve(), place)
    return list(folders.values())
