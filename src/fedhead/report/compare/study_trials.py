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

from fedhead.core.system.errors import BadInput
from fedhead.core.system.text import printable
from fedhead.studies.tune.study import read_about
from fedhead.studies.tune.trials import COLUMNS, RETRIED, STATES, TRIALS

_LARGEST = float(np.finfo(np.float32).max)  # the random forest computes in single precision


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

    def marks(self) -> list[list[tuple[float, str]]]:
        """Return what stands where on each axis of `lines`: every word, or the lowest and the highest number."""
        found = []
        for numbers, words in [*map(self.column, self.keys), (self.values(), None)]:
            marked = range(len(words)) if words is not None else dict.fromkeys([numbers.min(), numbers.max()])
            places = scaled(np.array(list(marked), dtype=np.float64))
            texts = words if words is not None else [f"{number:.3g}" for number in marked]
            found.append(list(zip(places.tolist(), texts, strict=True)))
        return found

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
        BadInput: If there is no such table, its header or a row is not what `fedhead tune` writes, nothing was
            searched, or fewer than two trials have ended.
    """
    path = folder / TRIALS
    if not path.is_file():
        raise BadInput(f"{path} is not there: give the folder of a study, as fedhead tune wrote it")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            keys = _searched_keys(path, header)
            rows = tuple(_row(header, texts, f"{path}, line {reader.line_num}") for texts in reader if texts)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{path} can't be read as a table of trials ({error})") from error
    found = Trials(keys, rows, maximizes, objective)
    if len(found.complete) < 2:
        raise BadInput(f"{path}: figures need at least two complete trials, there are {len(found.complete)}")
    return found


def _searched_keys(path: Path, header: list[str]) -> tuple[str, ...]:
    lacking = [name for name in COLUMNS if name not in header]
    if lacking:
        raise BadInput(f"{path}, line 1: no column {', '.join(lacking)}: it is not a table that fedhead tune wrote")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise BadInput(f"{path}, line 1: there are several columns {twice!r}: name each once")
    keys = tuple(name for name in header if name not in COLUMNS)
    if not keys:
        raise BadInput(f"{path}, line 1: no column of a key that was searched: there is nothing to draw")
    return keys


def _row(header: list[str], texts: list[str], where: str) -> dict[str, str]:
    """Return a trial's texts by column; of a complete one the value must be a number, and no setting infinite."""
    if len(texts) != len(header):
        raise BadInput(f"{where}: the header has {len(header)} columns, the row has {len(texts)}")
    row = dict(zip(header, texts, strict=True))
    states = (*STATES.values(), RETRIED)
    if row["state"] not in states:
        raise BadInput(f"{where}: state: {row['state'][:60]!r} is not one of {', '.join(states)}")
    if row["state"] == "complete":
        if not row["trial"].isdecimal() or len(row["trial"]) > 9:
            raise BadInput(f"{where}: trial: {row['trial'][:60]!r} is not a whole number")
        for name in ("value", *(name for name in header if name not in COLUMNS)):
            try:
                drawable = abs(float(row[name])) <= _LARGEST  # not so for nan
            except ValueError:
                drawable = name != "value"  # a setting may be a word
            if not drawable:
                raise BadInput(f"{where}: {printable(name)}: {row[name][:60]!r} is not a finite number")
    return row


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
    about = read_about(folder) or {"objective": "value", "direction": "maximize"}
    return read(folder, about["direction"] == "maximize", about["objective"])


def is_logarithmic(numbers: NDArray[np.float64]) -> bool:
    """Return whether numbers span more than a factor of 20."""
    return bool(numbers.min() > 0) and math.log(numbers.max() / numbers.min()) > 3


def scaled(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers on a scale from 0 to 1; equal ones are in the middle."""
    span = numbers.max() - numbers.min()
    return (numbers - numbers.min()) / span if span else np.full(numbers.shape, 0.5)
