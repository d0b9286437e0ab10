"""More rounds or further stages for a run that was begun with fewer."""

from __future__ import annotations

from typing import Any

from fedhead.core.training.schedules import make_schedule
from fedhead.recipes.recipe import Recipe


def difference(old: Recipe, new: Recipe) -> tuple[str, Any, Any] | None:
    """Return the first key in which a recipe is another one than the run's, with both values; None: it goes on with it.

    More rounds, and stages after those that there are, go on with a run; but not more rounds than those that a cosine
    of the learning rate was laid over.

    >>> difference(Recipe(rounds=3), Recipe(rounds=5, stages=("ccvr",))) is None
    True
    >>> difference(Recipe(rounds=3), Recipe(rounds=2))
    ('rounds', 3, 2)
    """
    before, now = old.flat(), new.flat()
    added = new.stages[len(old.stages) :] if new.stages[: len(old.stages)] == old.stages else ()
    for key in [*now, *before]:
        if before.get(key) == now.get(key) or key == "loggers":
            continue
        longer = key == "rounds" and new.rounds > old.rounds and not make_schedule(old.lr_schedule).needs_rounds
        staged = (key == "stages" and added) or any(key.startswith(f"stage.{name}.") for name in added)
        if not longer and not staged:
            return key, before.get(key), now.get(key)
    return None


def entry(old: Recipe, new: Recipe) -> dict[str, Any]:
    """Return what a run folder records of an extension."""
    return {"rounds": [old.rounds, new.rounds], "stages": [list(old.stages), list(new.stages)]}
