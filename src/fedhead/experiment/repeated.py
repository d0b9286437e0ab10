"""A run that is repeated from another's config.yaml: whether what that file names is still what the run had."""

from __future__ import annotations

from pathlib import Path

from fedhead.core.log import warn_once
from fedhead.experiment import components, first_weights, objects
from fedhead.experiment.recipe import Recipe, builtin, load
from fedhead.experiment.run_files import CONFIG, ENVIRONMENT, check_environment, read_object


def warn_of_changes(source: str | Path, recipe: Recipe) -> None:
    """Say where a repetition will differ from the run: other first weights, other code, or what no recipe holds.

    Args:
        source: What the recipe was loaded from; only a run folder's config.yaml has a run to compare with.
        recipe: The recipe, with assignments on top; what these replace is meant to differ.

    Raises:
        BadInput: The run's record is damaged, or something that the recipe names can't be found.
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
    digest, weights = known.get("weights"), recipe.weights
    meant = bool(digest) and weights == load(source).weights
    if weights is not None and meant and first_weights.digest(weights, recipe.folders) != digest:
        warn_once(f"weights: {weights} changed since {run} was begun: this run starts from other weights")
    for line in components.changed(recipe, known.get("components", []), without=objects.kinds(own)):
        warn_once(f"{line} changed since {run} was begun: this run is one of the new code")
