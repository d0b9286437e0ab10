"""The trials of a study as a report reads them: their values, what was chosen, and how much each key matters."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedhead.core.errors import BadInput
from fedhead.experiment.study import objective_of
from fedhead.experiment.trials import COLUMNS, TRIALS


@dataclass(frozen=True)
class Trials:
    """The trials of a study that have a value.

    Args:
        keys: What was searched.
        rows: Each trial's texts, by column.
        maximizes: Whether high values are good.
        objective: What the values are of.
    """

    keys: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    maximizes: bool = True
    objective: str = "value"

    @property
    def complete(self) -> list[dict[str, str]]:
        """The trials that were trained to their end."""
        return [row for row in self.rows if row["state"] == "complete"]

    def values(self) -> NDArray[np.float64]:
        """Return the value of each complete trial."""
        return np.array([float(row["value"]) for row in self.complete])

    def column(self, key: str) -> tuple[NDArray[np.float64], list[str] | None]:
        """Return a key's numbers in the complete trials; of words their places, and the words."""
        texts = [row[key] for row in self.complete]
        try:
            return np.array([float(text) for text in texts]), None
        except ValueError:
            words = sorted(set(texts))
            return np.array([float(words.index(text)) for text in texts]), words

    @property
    def best(self) -> dict[str, str]:
        """The best of the complete trials, the first of several."""
        values = self.values()
        return self.complete[int(np.argmax(values) if self.maximizes else np.argmin(values))]

    def best_so_far(self) -> NDArray[np.float64]:
        """Return the best value up to each complete trial."""
        return (np.maximum if self.maximizes else np.minimum).accumulate(self.values())

    def lines(self) -> NDArray[np.float64]:
        """Return the place of each complete trial on each key's axis, from 0 to 1, and last on that of the value."""
        axes = []
        for key in self.keys:
            numbers, words = self.column(key)
            axes.append(scaled(np.log(numbers) if words is None and is_logarithmic(numbers) else numbers))
        return np.stack([*axes, scaled(self.values())], axis=1)

    @cached_property
    def importance(self) -> dict[str, float]:
        """Return how much of the values' variance each key explains in a random forest."""
        from sklearn.ensemble import RandomForestRegressor

        x = np.stack([self.column(key)[0] for key in self.keys], axis=1)
        forest = RandomForestRegressor(100, random_state=0).fit(x, self.values())
        return dict(zip(self.keys, forest.feature_importances_.tolist(), strict=True))


def read(folder: Path, maximizes: bool = True, objective: str = "value") -> Trials:
    """Read the table of trials of a study.

    Args:
        folder: The study's folder.
        maximizes: Whether high values are good.
        objective: What the values are of.

    Raises:
        BadInput: If there is no such table, or fewer than two trials have ended.
    """
    path = folder / TRIALS
    if not path.is_file():
        raise BadInput(f"{path} is not there: give the folder of a study, as fedhead tune wrote it")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = tuple(reader)
    keys = tuple(name for name in reader.fieldnames or () if name not in COLUMNS)
    found = Trials(keys, rows, maximizes, objective)
    if len(found.complete) < 2:
        raise BadInput(f"{path}: figures need at least two complete trials, there are {len(found.complete)}")
    return found


def study_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Return the folders of studies among those given and below them, each once."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        for place in sorted(file.parent for file in path.glob(f"**/{TRIALS}")):
            found.setdefault(place.resolve(), place)
    return list(found.values())


def read_study(folder: Path) -> Trials:
    """Read a study's trials, with what it measures where its file is there too; else high values are taken for good.

    Raises:
        BadInput: As `read`.
    """
    objective, direction = objective_of(folder) or ("value", "maximize")
    return read(folder, direction == "maximize", objective)


def is_logarithmic(numbers: NDArray[np.float64]) -> bool:
    """Return whether numbers span more than a factor of 20."""
    return bool(numbers.min() > 0) and math.log(numbers.max() / numbers.min()) > 3


def scaled(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers on a scale from 0 to 1; equal ones are in the middle."""
    span = numbers.max() - numbers.min()
    return (numbers - numbers.min()) / span if span else np.full(numbers.shape, 0.5)
