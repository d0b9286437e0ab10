"""The keys that tell recipes apart, of recipes as flat rows of settings."""

from __future__ import annotations

from collections.abc import Sequence

from fedhead.metrics.records import Row


def differing(recipes: Sequence[Row]) -> list[str]:
    """Return the keys that recipes do not agree in."""
    names = dict.fromkeys(key for recipe in recipes for key in recipe)
    return [key for key in names if len({repr(recipe.get(key)) for recipe in recipes}) > 1]


def recipes_using(recipes: Sequence[Row], key: str) -> list[Row]:
    """Return the recipes that use a key: parameters of a method or a stage are for those alone, defaults too."""
    if key.startswith("stage."):
        stage = key.removeprefix("stage.").rpartition(".")[0]
        return [recipe for recipe in recipes if stage in recipe["stages"]]
    methods = {recipe["method"] for recipe in recipes if key in recipe}
    return [recipe for recipe in recipes if not key.startswith("method.") or recipe["method"] in methods]


def without_stages(recipe: Row) -> Row:
    """Return the settings that decide a recipe's training: all but those of stages, which come after it."""
    return {k: v for k, v in recipe.items() if k.partition(".")[0] not in ("stages", "stage")}
