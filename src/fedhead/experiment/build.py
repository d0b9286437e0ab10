"""From a recipe to the objects that it names, each checked against what they take before anything is computed."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

import fedhead.methods
import fedhead.stages  # noqa: F401 (importing the two fills the registries)
from fedhead import models
from fedhead.data import datasets, local_split, partition
from fedhead.data.augment import Transform
from fedhead.data.federation import Federation
from fedhead.errors import BadInput, unknown
from fedhead.experiment.config import Recipe
from fedhead.experiment.typed import check_parameters, parameters
from fedhead.method import METHODS, STAGES, Exchange, Method, Stage
from fedhead.models.split import Split
from fedhead.optim import SGD, Adam
from fedhead.types import Local

E = TypeVar("E", bound=Exchange)


def method(recipe: Recipe) -> Method:
    """The recipe's method with its parameters."""
    return _make("method", recipe.method, METHODS, recipe.method_parameters)


def stages(recipe: Recipe) -> list[Stage]:
    """What follows the rounds, in order; refuses a stage that does not go with the method."""
    on = method(recipe)
    made = [_make("stage", name, STAGES, recipe.stage_parameters.get(name, {})) for name in recipe.stages]
    return [stage.after(on) for stage in made]


def local(recipe: Recipe) -> Local:
    """How the clients train."""
    if recipe.optimizer == "adam":
        if recipe.momentum:
            raise BadInput("momentum: adam has none, its averages are set by betas; leave momentum at 0")
        chosen: SGD | Adam = Adam(recipe.lr, recipe.betas, weight_decay=recipe.weight_decay)
    else:
        chosen = SGD(recipe.lr, recipe.momentum, recipe.weight_decay)
    return Local(
        epochs=recipe.local_epochs,
        batch_size=recipe.batch_size,
        optimizer=chosen,
        lr_decay=recipe.lr_decay,
        drop_last=recipe.drop_last,
        persistent=recipe.persistent_optimizer,
    )


def model(recipe: Recipe, shape: tuple[int, ...], classes: int) -> Split:
    """The recipe's model for inputs of a shape, with initial weights that its seed decides."""
    name = recipe.model
    if name not in models.MODELS:
        raise unknown("model", name, models.MODELS)
    entry = models.MODELS[name]
    own = typing.get_type_hints(entry.builder)
    common = parameters(models.build, leave_out=("name", "input_shape", "classes", "seed"))
    hints = common | {word: own.get(word, Any) for word in entry.parameters()}
    given = check_parameters("model", name, recipe.model_parameters, hints)
    needed = method(recipe).head
    if needed is not None:
        given.setdefault("head", needed)
    return models.build(name, shape, classes, seed=recipe.seed, **given)


def federation(recipe: Recipe, data: str | Path | None = None) -> Federation:
    """The recipe's data, dealt out to its clients; `dataset` may also be your own .npz file or folder of images."""
    settings: dict[str, Any] = {"seed": recipe.seed, "local_test": _local_test(recipe)}
    if not own_data(recipe.dataset):
        return Federation.load(
            recipe.dataset,
            recipe.partition,
            recipe.clients,
            data_dir=data,
            augment=recipe.augment,
            samples=recipe.subset,
            **settings,
        )
    if recipe.partition != "given":  # sites that are folders already come with theirs
        settings |= {"partition": recipe.partition, "clients": recipe.clients}
    path = Path(recipe.dataset)
    made = Federation.from_npz(path, **settings) if path.is_file() else Federation.from_folder(path, **settings)
    if recipe.partition == "given" and len(made) != recipe.clients:
        raise BadInput(
            f"clients: {path} holds {len(made)} sites, the recipe says {recipe.clients}; set clients={len(made)}"
        )
    return made if recipe.subset is None else made.subset(recipe.subset, recipe.seed)


def own_data(name: str) -> bool:
    """Whether a data set's name is a path to the user's own data."""
    return name not in datasets.DATASETS and Path(name).exists()


def validate(recipe: Recipe) -> Split:
    """Check a recipe's names, parameters, and that data and model fit, without data or training; returns the model."""
    stages(recipe)
    local(recipe)
    deal = partition.parse(recipe.partition)
    _local_test(recipe)
    if own_data(recipe.dataset):
        made = federation(recipe)
        shape, classes = made.input_shape, made.classes
    else:
        entry = datasets.get(recipe.dataset)
        shape, classes = entry.shape, entry.classes
        if isinstance(deal, partition.Given):
            raise BadInput(f"partition: given is for data that is split by site already, {recipe.dataset} is not")
        held = entry.sizes[0] if entry.sizes else None
        if held is not None and (recipe.subset or 0) > held:
            raise BadInput(f"subset: {recipe.subset} is more than the {held} training samples of {recipe.dataset}")
        samples = recipe.subset or held
        if samples is not None and recipe.clients > samples:
            raise BadInput(f"clients: {recipe.clients} clients can't share {samples} samples; use at most {samples}")
        transform: Transform = entry.transform.replace(recipe.augment)
        transform.check(shape)
    made_model = model(recipe, shape, classes)
    _dry_run(made_model, shape, recipe)
    return made_model


def _dry_run(made: Split, shape: tuple[int, ...], recipe: Recipe) -> None:
    """One blank input through the model: what it can't take shows here, not after the data is loaded."""
    was = made.training
    try:
        with torch.no_grad():
            made.eval()(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"model: {recipe.model!r} can't take {recipe.dataset}'s inputs of shape {shape} ({reason})"
        ) from error
    finally:
        made.train(was)


def _local_test(recipe: Recipe) -> local_split.LocalTest | None:
    return local_split.parse("matched" if recipe.local_test == "from_test" else recipe.local_test)


def _make(kind: str, name: str, registry: Mapping[str, type[E]], given: Mapping[str, Any]) -> E:
    if name not in registry:
        raise unknown(kind, name, registry)
    hints = parameters(registry[name], leave_out=("method",) if kind == "stage" else ())
    return registry[name](**check_parameters(kind, name, given, hints))
