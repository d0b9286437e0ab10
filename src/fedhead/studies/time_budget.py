"""A time budget for runs: how much time is left, and how long a run is likely to take."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.training import per_client_counts
from fedhead.data.sources import datasets
from fedhead.engine.experiment.experiment import Inputs
from fedhead.recipes import experiment as build
from fedhead.recipes.recipe import Recipe

MOST_MINUTES = 10_000_000  # 19 years; seconds beyond the largest float would count as no time at all
Minutes = Annotated[float, AtLeast(0), AtMost(MOST_MINUTES)]


class TimeBudget:
    """Estimates whether a run can still be begun and end in time.

    The duration of a run is learned from earlier runs with the same data set and model, with the same method if there
    were any.
    """

    def __init__(self, minutes: float | None = None):
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self._half = 30 * (minutes or 0)
        self._pace: dict[tuple[str, ...], float] = {}  # seconds per epoch

    @property
    def exhausted(self) -> bool:
        """Whether the time is up."""
        return self._end is not None and time.monotonic() >= self._end

    def record(self, recipe: Recipe, seconds: float) -> None:
        """Record what a run took by the clock."""
        for key in _lookup_keys(recipe):
            self._pace[key] = seconds / epochs(recipe)

    def fits(self, recipe: Recipe) -> bool:
        """Return whether a run is likely to end in time.

        Runs of which nothing is known yet are begun in the first half of the time.
        """
        if self._end is None:
            return True
        left = self._end - time.monotonic()
        pace = next((self._pace[key] for key in _lookup_keys(recipe) if key in self._pace), None)
        return left > self._half if pace is None else pace * epochs(recipe) <= left


def _lookup_keys(recipe: Recipe) -> list[tuple[str, ...]]:
    common = (recipe.dataset, str(recipe.model), str(recipe.subset))
    return [(*common, recipe.method), common]


def epochs(recipe: Recipe) -> float:
    """Return about how often a training passes over all its data; where steps are given, their number instead."""
    local = build.local(recipe)
    return (
        recipe.rounds
        * per_client_counts.mean(local.epochs if local.steps is None else local.steps)
        * recipe.participation
    )


def cost(recipe: Recipe) -> float:
    """Return about how much a training computes: multiplications and additions of the forward passes."""
    entry = datasets.get(recipe.dataset, recipe.folders)
    samples = recipe.subset or (entry.sizes[0] if entry.sizes else 100_000)
    decisive = {k: v for k, v in recipe.flat().items() if k in ("dataset", "model", "resize") or k.startswith("model.")}
    return epochs(recipe) * samples * _operations(json.dumps(decisive), recipe.folders)


@cache
def _operations(keys: str, folders: tuple[Path, ...]) -> float:
    """The mean over a recipe's models of what one sample takes."""
    recipe = Recipe.from_flat(json.loads(keys), folders)
    entry = datasets.get(recipe.dataset, folders)
    shape: Any = entry.transform.replace(resize=recipe.resize).output_shape(entry.shape)
    made = build.architectures(recipe, Inputs(shape, entry.classes))
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        for model in made:
            model.eval()(torch.zeros(1, *shape))
    return counter.get_total_flops() / len(made)
