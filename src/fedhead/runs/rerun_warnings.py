"""Runs that start from another's config.yaml: whether what that file names is still what the run had."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedhead.core.system.log import warn_once
from fedhead.recipes import components, initial_weights
from fedhead.recipes.recipe import Recipe, builtin, load
from fedhead.recipes.run_folder_schema import CONFIG, ENVIRONMENT, check_environment, read_object
from fedhead.runs import python_components


def warn_of_changes(source: str | Path, recipes: Sequence[Recipe]) -> None:
    """Say where repetitions will differ from the run: other first weights, other code, or what no recipe holds.

    Args:
        source: What the recipes were made from; only a run folder's config.yaml has a run to compare with.
        recipes: What will be run, such as the cells of a sweep; what these replace is meant to differ.

    Raises:
        BadInput: The run's record is damaged, or something that a recipe names can't be found.
    """
    path = Path(source)
    if path.name != CONFIG or str(source) in builtin():
        return
    run, record = path.parent, path.parent / ENVIRONMENT
    known = check_environment(read_object(record) or {}, str(record))
    own = known.get("objects", {})
    if own:
        warn_once(
            f"{run} was begun in Python with its own {', '.join(own)}: here they are what {CONFIG} names, or the "
            "defaults, and the results may differ"
        )
    digest, weights = known.get("weights"), load(source).weights
    same = next((recipe for recipe in recipes if recipe.weights == weights), None)
    if digest and weights is not None and same and initial_weights.digest(weights, same.folders) != digest:
        warn_once(f"weights: {weights} changed since {run} was begun: training starts from other weights")
    for recipe in recipes:
        for line in components.changed(recipe, known.get("components", []), without=python_components.kinds(own)):
            warn_once(f"{line} changed since {run} was begun: training is that of the new code")
