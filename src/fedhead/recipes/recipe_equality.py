"""What a recipe means, however it is written: dirichlet(0.1) and dirichlet(alpha=0.1) are one partition."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD, Adam
from fedhead.data.partitions import client_test_sets
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.recipes import experiment
from fedhead.recipes.parts import PARTS
from fedhead.recipes.recipe import Recipe

# Fields of the local training, of which there is one object, whose recipe keys have other names.
_RENAMED = {
    "epochs": "local_epochs",
    "steps": "local_steps",
    "schedule": "lr_schedule",
    "persistent": "persistent_optimizer",
}
_LOCAL = {
    _RENAMED.get(field.name, field.name)
    for kind in (LocalTraining, SGD, Adam)  # AdamW's fields are Adam's
    for field in dataclasses.fields(kind)
}


def canonical(recipe: Recipe) -> str:
    """Return a text that two recipes share if they mean the same; the seed does not count.

    Components stand there as they are built, with the defaults of what is not given.

    Raises:
        BadInput: A component can't be built.

    >>> canonical(Recipe(method="fedprox")) == canonical(Recipe(method="fedprox", method_parameters={"mu": 1e-2}))
    True
    """
    rule = parse_partition(recipe.partition, recipe.folders)
    built: dict[str, Any] = {
        "partition": _text(rule, recipe.partition),
        "client_test": repr(client_test_sets.parse(recipe.client_test)),
        "objective": recipe.objective or "multiclass",
        "model": [_model(entry, given) for entry, given in experiment.model_settings(recipe)],
        "local": repr(experiment.local(recipe)),
    }
    for part in PARTS:
        given = getattr(recipe, part.key)
        components = part.of(recipe) if given is not None else part.build(part.default)
        texts = [given, recipe.method_parameters, recipe.stage_parameters]
        built[part.key] = [_text(one, texts) for one in part.listed(components)]
    parts = ("model.", "method.", "stage.")
    kept = {key: value for key, value in recipe.flat().items() if key not in (*built, *_LOCAL, "seed", "seeds")}
    return repr([sorted(built.items()), sorted((k, v) for k, v in kept.items() if not k.startswith(parts))])


def _text(component: Any, written: Any) -> str:
    """Return what tells a component apart: its settings; of one that does not show them, what was written."""
    kind = type(component)
    shown = repr(component) if dataclasses.is_dataclass(component) else f"{kind.__qualname__} {written!r}"
    return f"{kind.__module__}.{shown}"


def _model(entry: Any, given: dict[str, Any]) -> str:
    usual = inspect.signature(entry.builder).parameters.values()
    defaults = {one.name: one.default for one in usual if one.default is not inspect.Parameter.empty}
    return f"{entry.name} {sorted((defaults | given).items())!r}"
