"""Training and validation of the recipes of sweeps and paper tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch

from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.experiment import BuiltModels, build_experiment
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import execute


def validate(recipes: Mapping[str, Recipe]) -> None:
    """Check that all recipes can be built, before the first one runs; equal models are built once.

    Args:
        recipes: Recipes by cell name.

    Raises:
        BadInput: A recipe can't be built.
    """
    models: BuiltModels = {}
    for name, recipe in recipes.items():
        try:
            build_experiment(recipe, built=models)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from error


def training_key(recipe: Recipe) -> str:
    """Serialize the recipe keys that determine a training: all but the stages."""
    flat = recipe.flat().items()
    return json.dumps({k: v for k, v in flat if not k.startswith(("stages", "stage."))}, sort_keys=True)


def train(path: Path, recipe: Recipe, compute: Compute) -> None:
    """Run or resume a training; a finished one is not changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    try:
        execute(recipe, path, compute, resume=True)
    finally:
        torch.set_num_threads(threads)  # the number of threads affects rounding of the next run
