"""Rules of resuming: a run may be extended by more rounds or further stages."""

from __future__ import annotations

from fedhead.core.training.schedules import make_schedule
from fedhead.recipes import differences as diff
from fedhead.recipes.differences import Difference
from fedhead.recipes.recipe import Recipe


def differences(old: Recipe, new: Recipe) -> list[Difference]:
    """Return the keys in which a recipe is another one than the run's; none where it continues the run.

    More rounds, and stages after those that there are, continue a run; but not more rounds than those that a cosine
    of the learning rate was laid over.

    >>> differences(Recipe(rounds=3), Recipe(rounds=5, stages=("ccvr",)))
    []
    >>> differences(Recipe(rounds=3), Recipe(rounds=2))
    [Difference(key='rounds', old=3, new=2)]
    """
    ignored = ["loggers"]
    if new.rounds > old.rounds and not make_schedule(old.lr_schedule).needs_rounds:
        ignored.append("rounds")
    added = new.stages[len(old.stages) :] if new.stages[: len(old.stages)] == old.stages else ()
    if added:
        ignored.append("stages")
    parameters = tuple(f"stage.{name}." for name in added)
    others = diff.differences(old.flat(), new.flat(), ignored)
    return [other for other in others if not other.key.startswith(parameters)]
