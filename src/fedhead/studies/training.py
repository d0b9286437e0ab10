"""Trainings of sweeps and paper tables."""

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
    """Refuse recipes that can't be run before any is, naming the first; equal models are built once.

    Args:
        recipes: The recipes by the names of their cells.

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
    """Return the settings that decide a training: everything but the stages."""
    flat = recipe.flat().items()
    return json.dumps({k: v for k, v in flat if not k.startswith(("stages", "stage."))}, sort_keys=True)


def train(path: Path, recipe: Recipe, settings: Compute) -> None:
    """Run a training from where it stands; a finished one is left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    try:
        execute(recipe, path, settings, resume=True)
    finally:
        torch.set_num_threads(threads)  # the next run is to round as it would alone
