"""Rules of resuming: a run may be extended by rounds or stages."""

from __future__ import annotations

from fedhead.core.training.schedules import make_schedule
from fedhead.recipes import differences as diff
from fedhead.recipes.differences import Difference
from fedhead.recipes.recipe import Recipe


def differences(old: Recipe, new: Recipe) -> list[Difference]:
    """Return the keys that prevent resuming a run with a recipe.

    More rounds and additional stages are valid, except with differential privacy, whose budget is planned, and more
    rounds with a cosine schedule, which depends on their number.

    >>> differences(Recipe(rounds=3), Recipe(rounds=5, stages=("ccvr",)))
    []
    >>> differences(Recipe(rounds=3), Recipe(rounds=2))
    [Difference(key='rounds', old=3, new=2)]
    """
    ignored = ["loggers"]
    if new.rounds > old.rounds and not make_schedule(old.lr_schedule).needs_rounds and not new.privacy:
        ignored.append("rounds")
    added = new.stages[len(old.stages) :] if new.stages[: len(old.stages)] == old.stages else ()
    if added and not new.privacy:  # the budget of a private run is spent on its own stages
        ignored.append("stages")
    parameters = tuple(f"stage.{name}." for name in added)
    others = diff.differences(old.flat(), new.flat(), ignored)
    return [other for other in others if not other.key.startswith(parameters)]
