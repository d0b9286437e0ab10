"""The trials of a study as a report reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedhead.core.system.errors import BadInput, first_line
from fedhead.studies.tune.study import read_about
from fedhead.studies.tune.trials import COLUMNS, TRIALS


@dataclass(frozen=True)
class Trials:
    """The trials of a study.

    Args:
        keys: The keys that were searched.
        table: All trials as texts, by column.
        maximizes: Whether high values are good.
        objective: The name of the values.
    """

    keys: tuple[str, ...]
    table: pd.DataFrame
    maximizes: bool = True
    objective: str = "value"

    @property
    def complete(self) -> pd.DataFrame:
        """The trials that were trained to their end."""
        return self.table[self.table["state"] == "complete"]

    def values(self) -> NDArray[np.float64]:
        """Return the value of each complete trial."""
        return np.asarray(self.complete["value"], dtype=np.float64)

    def column(self, key: str) -> tuple[NDArray[np.float64], list[str] | None]:
        """Return a key's numbers in the complete trials; of words their indices, and the words."""
        texts = self.complete[key]
        try:
            return np.asarray(texts, dtype=np.float64), None
        except ValueError:
            words, indices = np.unique(np.asarray(texts, dtype=str), return_inverse=True)
            return indices.astype(np.float64), [str(word) for word in words]

    @property
    def best(self) -> dict[str, str]:
        """The best of the complete trials, the first of several."""
        values = self.values()
        return dict(self.complete.iloc[int(np.argmax(values) if self.maximizes else np.argmin(values))])

    def best_so_far(self) -> NDArray[np.float64]:
        """Return the best value up to each complete trial."""
        return (np.maximum if self.maximizes else np.minimum).accumulate(self.values())


def read_study(folder: Path) -> Trials:
    """Read a study's trials; where its own file is missing, high values are taken for good.

    Raises:
        BadInput: If there is no such table, it is not what `fedhead tune` writes, or fewer than two trials are
            complete.
    """
    about = read_about(folder) or {"objective": "value", "direction": "maximize"}
    path = folder / TRIALS
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        keys = tuple(str(name) for name in table.columns if name not in COLUMNS)
        trials = Trials(keys, table, about["direction"] == "maximize", about["objective"])
        trials.complete[list(COLUMNS)].astype({"trial": int, "value": float})
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{path} can't be read as a table of trials ({first_line(error)})") from error
    if len(trials.complete) < 2:
        raise BadInput(f"{path}: figures need at least two complete trials, there are {len(trials.complete)}")
    return trials


def study_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Return the folders of studies among those given and below them, each once."""
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        for place in sorted(file.parent for file in path.glob(f"**/{TRIALS}")):
            folders.setdefault(place.resolve(), place)
    return list(folders.values())


def is_logarithmic(numbers: NDArray[np.float64]) -> bool:
    """Return whether numbers span more than a factor of 20."""
    return bool(numbers.min() > 0) and math.log(numbers.max() / numbers.min()) > 3
