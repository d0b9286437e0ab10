"""A time budget for runs: how much time is left, and how long a run is likely to take."""

from __future__ import annotations

import time
from typing import Annotated

from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.training import per_client_counts
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
