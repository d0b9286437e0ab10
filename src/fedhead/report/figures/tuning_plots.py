"""Figures of a study: the best value so far, slices, parallel coordinates and the importance of each key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedhead.report import style
from fedhead.report.compare.study_trials import Trials, is_logarithmic, read
from fedhead.report.style import COLORS, styled


@styled
def best_so_far(trials: Trials) -> Figure:
    """Draw each trial's value, and the best up to it."""
    figure, axes = _figure("trial", trials.objective)
    numbers = [int(row["trial"]) for row in trials.complete]
    axes.scatter(numbers, trials.values(), s=14, color=COLORS[0], label="trial")
    axes.step(numbers, trials.best_so_far(), where="post", color=COLORS[1], label="best so far")
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
        elif is_logarithmic(numbers):
            style.log_scale(axes)
    every[0].set_ylabel(trials.objective)
    return figure


@styled
def parallel_coordinates(trials: Trials) -> Figure:
    """Draw each trial as a line through its values of all keys, darker the better it is."""
    figure, axes = _figure("", "")
    lines, places = trials.lines(), range(len(trials.keys) + 1)
    shade = lines[:, -1] if trials.maximizes else 1 - lines[:, -1]
    for place in np.argsort(shade):
        axes.plot(places, lines[place], color=COLORS[0], alpha=0.1 + 0.9 * float(shade[place]) ** 2, linewidth=1)
    axes.set_xticks(places, [*trials.keys, trials.objective])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.12)  # for what the last axis is marked with
    for place, marks in zip(places, trials.marks(), strict=True):
        axes.axvline(place, color=style.INK, linewidth=0.6, zorder=0)
        for height, word in marks:
            axes.annotate(
                style.fitting(word, 0.8 * 6.4 / len(places), 7),
                (place, height),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1},
            )
    return figure


@styled
def importance(trials: Trials) -> Figure:
    """Draw how much of the values' variance each key explains in a random forest."""
    found = dict(sorted(trials.importance.items(), key=lambda one: one[1]))
    figure, axes = _figure("share of the explained variance", "")
    axes.barh(list(found), list(found.values()), color=COLORS[0])
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
