"""Figures of a study: the best value so far, slices, parallel coordinates and the importance of each key."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedhead.core.errors import BadInput
from fedhead.experiment.trials import COLUMNS, TRIALS
from fedhead.report import style
from fedhead.report.style import COLORS, styled


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


@styled
def best_so_far(trials: Trials) -> Figure:
    """Draw each trial's value, and the best up to it."""
    figure, axes = _figure("trial", trials.objective)
    numbers = [int(row["trial"]) for row in trials.complete]
    values = trials.values()
    best = np.maximum.accumulate(values) if trials.maximizes else np.minimum.accumulate(values)
    axes.scatter(numbers, values, s=14, color=COLORS[0], label="trial")
    axes.step(numbers, best, where="post", color=COLORS[1], label="best so far")
    axes.legend()
    return figure


@styled
def slices(trials: Trials) -> Figure:
    """Draw the value against each key."""
    figure = Figure(figsize=(3.2 * len(trials.keys), 3), layout="constrained")
    every = figure.subplots(1, len(trials.keys), squeeze=False, sharey=True)[0]
    for axes, key in zip(every, trials.keys, strict=True):
        numbers, words = trials.column(key)
        axes.scatter(numbers, trials.values(), s=14, color=COLORS[0])
        axes.set_xlabel(key)
        if words is not None:
            axes.set_xticks(range(len(words)), words)
        elif _is_logarithmic(numbers):
            axes.set_xscale("log")
    every[0].set_ylabel(trials.objective)
    return figure


@styled
def parallel_coordinates(trials: Trials) -> Figure:
    """Draw each trial as a line through its values of all keys, darker the better it is."""
    figure, axes = _figure("", "")
    scaled, places = [], range(len(trials.keys) + 1)
    for key in trials.keys:
        numbers, words = trials.column(key)
        scaled.append(_scaled(np.log(numbers) if words is None and _is_logarithmic(numbers) else numbers))
    goodness = _scaled(trials.values())
    lines = np.stack([*scaled, goodness], axis=1)
    shade = goodness if trials.maximizes else 1 - goodness
    for place in np.argsort(shade):
        axes.plot(places, lines[place], color=COLORS[0], alpha=0.1 + 0.9 * float(shade[place]) ** 2, linewidth=1)
    axes.set_xticks(places, [*trials.keys, trials.objective])
    axes.set_yticks([0, 1], ["lowest", "highest"])
    return figure


@styled
def importance(trials: Trials) -> Figure:
    """Draw how much of the values' variance each key explains in a random forest."""
    from sklearn.ensemble import RandomForestRegressor

    x = np.stack([trials.column(key)[0] for key in trials.keys], axis=1)
    forest = RandomForestRegressor(100, random_state=0).fit(x, trials.values())
    order = np.argsort(forest.feature_importances_)
    figure, axes = _figure("share of the explained variance", "")
    axes.barh([trials.keys[i] for i in order], forest.feature_importances_[order], color=COLORS[0])
    return figure


FIGURES = {
    "best_so_far": best_so_far,
    "slices": slices,
    "parallel_coordinates": parallel_coordinates,
    "importance": importance,
}


def save(
    folder: Path, maximizes: bool = True, objective: str = "value", formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Draw all figures of a study and save them in its folder.

    Args:
        folder: The study's folder.
        maximizes: Whether high values are good.
        objective: What the values are of.
        formats: Endings of the files.

    Returns:
        The files.
    """
    trials, made = read(folder, maximizes, objective), []
    for name, draw in FIGURES.items():
        figure = draw(trials)
        for ending in formats:
            made.append(folder / f"{name}.{ending}")
            style.save(figure, made[-1])
    return made


def _figure(x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y)
    return figure, axes


def _is_logarithmic(numbers: NDArray[np.float64]) -> bool:
    """Return whether numbers span more than a factor of 20."""
    return bool(numbers.min() > 0) and math.log(numbers.max() / numbers.min()) > 3


def _scaled(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    span = numbers.max() - numbers.min()
    return (numbers - numbers.min()) / span if span else np.full(numbers.shape, 0.5)
