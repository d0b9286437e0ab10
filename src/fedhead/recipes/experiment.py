"""Builder of experiments, from a recipe and optional Python objects.

`fedhead run`, `fedhead.run`, `fedhead.load`, sites and studies all use `build_experiment`, so every experiment is
validated the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage, bind
from fedhead.algorithm.task import LocalTraining
from fedhead.core.components.parameters import check_all
from fedhead.core.system.errors import forward_errors
from fedhead.core.training import per_client_counts
from fedhead.core.training.optimizers import Optimizer, make_optimizer
from fedhead.core.training.schedules import make_schedule
from fedhead.core.tree.inputs import blank, to_dtype
from fedhead.data.federation.federation import Federation
from fedhead.engine.experiment import compatibility, training_objective
from fedhead.engine.experiment.experiment import Experiment, InputSpec, Schedule
from fedhead.metrics import registry
from fedhead.models import MODELS, Architecture
from fedhead.models.build_many import build_many
from fedhead.models.split_model import SplitModel, freeze
from fedhead.recipes import initial_weights, recipe_data
from fedhead.recipes.component_kinds import COMPONENT_KINDS
from fedhead.recipes.recipe import Recipe

BuiltModels = dict[str, tuple[SplitModel, ...]]
MakeModels = Callable[[str | None], Sequence[SplitModel]]  # argument: the head that the method needs


def build_experiment(
    recipe: Recipe,
    inputs: InputSpec | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    make_models: MakeModels | None = None,
    built: BuiltModels | None = None,
    assign: Sequence[int] | None = None,
) -> Experiment:
    """Build and validate the experiment of a recipe.

    Args:
        recipe: Recipe.
        inputs: Shape and number of classes of the samples; None: those of the recipe's data set.
        given: Components that override the recipe's, by key: texts, classes or objects; also an `optimizer`.
        make_models: Factory of the models, which overrides the recipe's.
        built: Cache of models, to which the models of this recipe are added.
        assign: Model number by client; None: i mod n.

    Raises:
        BadInput: A component is unknown, a value is out of range, or components are incompatible.
    """
    given = given or {}
    inputs = inputs or recipe_data.inputs(recipe)
    parts = {
        kind.key: kind.build(given[kind.key], recipe.folders) if kind.key in given else kind.of(recipe)
        for kind in COMPONENT_KINDS
    }
    training = local(recipe, given.get("optimizer"))
    metrics = registry.find(given.get("metrics", recipe.metrics), recipe.folders, inputs.objective)
    training_objective.check(parts["method"], inputs.objective, training)  # before building the head
    if make_models is None:
        chosen = _cached_models(recipe, inputs, parts["method"].head, {} if built is None else built)
    else:
        chosen = tuple(make_models(parts["method"].head))
    experiment = Experiment(
        **parts,
        metrics=metrics,
        local=training,
        schedule=Schedule(**{field.name: getattr(recipe, field.name) for field in fields(Schedule)}),
        models=chosen,
        assign=None if assign is None else tuple(assign),
    )
    compatibility.check_rounds(recipe.rounds, experiment.stages)
    registry.check(metrics, inputs.classes, inputs.objective)
    experiment.check(inputs, recipe.clients)
    return experiment


def prepare(recipe: Recipe, data_dir: str | Path | None = None) -> tuple[Experiment, Federation]:
    """Build a recipe's experiment and load its data.

    Args:
        recipe: Recipe.
        data_dir: Folder of the data sets; None: the default one.

    Raises:
        BadInput: Components are incompatible with each other or with the data.
    """
    federation = recipe_data.federation(recipe, data_dir) if recipe_data.is_path(recipe.dataset) else None
    inputs = recipe_data.inputs(recipe) if federation is None else InputSpec.of(federation)
    experiment = build_experiment(recipe, inputs)
    return experiment, federation or recipe_data.federation(recipe, data_dir)


def algorithms(recipe: Recipe) -> tuple[Method, tuple[Stage, ...]]:
    """Build the recipe's method and stages; raise an error for incompatible stages."""
    method, stages = (kind.of(recipe) for kind in COMPONENT_KINDS[:2])
    return method, bind(stages, method)


def local(recipe: Recipe, optimizer: Optimizer | None = None) -> LocalTraining:
    """Build the local training of a recipe; a given optimizer overrides the recipe's."""
    chosen = optimizer or make_optimizer(
        recipe.optimizer, recipe.lr, recipe.momentum, recipe.weight_decay, recipe.betas, recipe.nesterov
    )
    return LocalTraining(
        epochs=per_client_counts.read(recipe.local_epochs, "local_epochs"),
        steps=None if recipe.local_steps is None else per_client_counts.read(recipe.local_steps, "local_steps"),
        batch_size=recipe.batch_size,
        optimizer=chosen,
        lr_decay=recipe.lr_decay,
        schedule=make_schedule(recipe.lr_schedule),
        warmup_rounds=recipe.warmup_rounds or 0,
        clip_norm=recipe.clip_norm,
        drop_last=recipe.drop_last,
        persistent=recipe.persistent_optimizer,
        label_smoothing=recipe.label_smoothing or 0.0,
        class_weights=recipe.class_weights,
    )


def architectures(recipe: Recipe, inputs: InputSpec, head: str | None = None) -> list[SplitModel]:
    """Build the recipe's models, initialized by its seed; client i has model i mod n.

    `model.<parameter>` applies to every model that has it; in a list, name(parameter=value) applies to that model only.

    Args:
        recipe: Recipe with the models and their parameters.
        inputs: Input shape and number of outputs.
        head: Head that the method needs, for models without a head in the recipe.
    """
    checked = model_settings(recipe)
    if head is not None:
        for _, given in checked:
            given.setdefault("head", head)
    built = build_many(checked, inputs.shape, inputs.outputs, recipe.seed, recipe.folders)
    for number, model in enumerate(built):
        _forward(model, inputs, recipe, number)
    if recipe.weights is not None:
        initial_weights.start_from(built, recipe.weights, recipe.folders)
    freeze(built, recipe.freeze)
    return built


def model_settings(recipe: Recipe) -> list[tuple[Architecture, dict[str, Any]]]:
    """Return the recipe's architectures with the validated parameters of each."""
    texts = recipe.model if isinstance(recipe.model, tuple) else (recipe.model,)
    calls = [MODELS.resolve_call(text, recipe.folders) for text in texts]
    requested = [(entry, entry.arguments(call)) for call, entry in calls]
    hints = [entry.parameters() for entry, _ in requested]
    common = {name: value for name, value in recipe.model_parameters.items() if any(name in hint for hint in hints)}
    if recipe.model_parameters.keys() - common.keys():
        check_all(
            recipe.model_parameters, hints[0], f"model {requested[0][0].name}", "model."
        )  # raises an error that names the unknown parameter
    checked = []
    for (entry, special), hint in zip(requested, hints, strict=True):
        given = {name: value for name, value in common.items() if name in hint} | special
        checked.append((entry, check_all(given, hint, f"model {entry.name}", "model.")))
    return checked


def _cached_models(recipe: Recipe, inputs: InputSpec, head: str | None, built: BuiltModels) -> tuple[SplitModel, ...]:
    """Return the recipe's models from the cache, or build them."""
    decides = (recipe.model, recipe.model_parameters, recipe.seed, recipe.weights, recipe.freeze, recipe.folders)
    key = repr((decides, inputs, head))
    if key not in built:
        built[key] = tuple(architectures(recipe, inputs, head))
    return built[key]


def _forward(model: SplitModel, inputs: InputSpec, recipe: Recipe, client: int) -> None:
    """Check the input shape by a forward pass of a blank sample, before the data is loaded."""
    was = model.training
    name = recipe.model if isinstance(recipe.model, str) else recipe.model[client]
    problem = f"model: {name!r} can't take {recipe.dataset}'s inputs of shape {inputs.shape}"
    try:
        with forward_errors(problem), torch.no_grad():
            model.eval()(to_dtype(blank(inputs.shape, inputs.types), torch.get_default_dtype()))
    finally:
        model.train(was)
