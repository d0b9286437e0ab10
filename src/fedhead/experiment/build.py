"""From a recipe to the objects that it names, each checked against what they take before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedhead import models
from fedhead.algorithm.base import Algorithm, Method, Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import UPLOADS, Upload
from fedhead.core.errors import BadInput
from fedhead.core.optimizers import make_optimizer
from fedhead.core.parameters import check_all, parameters
from fedhead.core.registry import Registry
from fedhead.data import client_test, datasets, partition
from fedhead.data.augment import Transform
from fedhead.data.federation import Federation
from fedhead.data.partition_registry import parse as parse_partition
from fedhead.engine import classification_metrics, compatibility
from fedhead.experiment.recipe import Recipe
from fedhead.methods import METHODS
from fedhead.models.build_many import build_many
from fedhead.models.split_model import SplitModel, freeze
from fedhead.stages import STAGES

E = TypeVar("E", bound=Algorithm)


def method(recipe: Recipe) -> Method:
    """The recipe's method with its parameters."""
    return _make(METHODS, recipe.method, recipe.method_parameters, recipe.folders)


def stages(recipe: Recipe) -> list[Stage]:
    """What follows the rounds, in order; refuses a stage that does not go with the method."""
    on = method(recipe)
    made = [_make(STAGES, name, recipe.stage_parameters.get(name, {}), recipe.folders) for name in recipe.stages]
    names = [stage.name for stage in made]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"stages: {twice[0]} stands there twice, and its results would be mixed up; name each once")
    return [stage.after(on) for stage in made]


def uploads(recipe: Recipe) -> list[Upload]:
    """What the clients' replies pass before they leave, in order."""
    return [upload(text, recipe.folders) for text in recipe.uploads]


def upload(step: str | Upload | type[Upload], folders: Sequence[Path] = ()) -> Upload:
    """Return the upload of a text such as `clip(0.5)` or `mine.py:Noise(level=0.1)`, of a class, or the one given."""
    if isinstance(step, Upload):
        return step
    call, found = UPLOADS.resolve_call(step, folders)
    return found(**call.arguments("upload", parameters(found)))


def local(recipe: Recipe) -> LocalTraining:
    """How the clients train."""
    chosen = make_optimizer(recipe.optimizer, recipe.lr, recipe.momentum, recipe.weight_decay, recipe.betas)
    return LocalTraining(
        epochs=recipe.local_epochs,
        batch_size=recipe.batch_size,
        optimizer=chosen,
        lr_decay=recipe.lr_decay,
        drop_last=recipe.drop_last,
        persistent=recipe.persistent_optimizer,
    )


def architectures(recipe: Recipe, shape: tuple[int, ...], classes: int) -> list[SplitModel]:
    """The recipe's models for inputs of a shape, client i having model i mod n; its seed decides their weights.

    `model.<parameter>` goes to every model that takes it; in the list, name(parameter=value) is for that model alone.
    """
    texts = recipe.model if isinstance(recipe.model, tuple) else (recipe.model,)
    asked = [_model_and_parameters(text, recipe.folders) for text in texts]
    hints = [_model_parameters(entry) for entry, _ in asked]
    common = {word: value for word, value in recipe.model_parameters.items() if any(word in own for own in hints)}
    if recipe.model_parameters.keys() - common.keys():
        check_all(
            recipe.model_parameters, hints[0], f"model {asked[0][0].name}", "model."
        )  # says which word is unknown
    needed = method(recipe).head
    checked = []
    for (entry, special), own in zip(asked, hints, strict=True):
        given = {word: value for word, value in common.items() if word in own} | special
        given = check_all(given, own, f"model {entry.name}", "model.")
        if needed is not None:
            given.setdefault("head", needed)
        checked.append((entry, given))
    made = build_many(checked, shape, classes, recipe.seed, recipe.folders)
    freeze(made, recipe.freeze)
    return made


def _model_and_parameters(text: str, folders: Sequence[Path]) -> tuple[models.Entry, dict[str, Any]]:
    """The model and the parameters of a text such as `protocnn(channels=18)`."""
    call, entry = models.MODELS.resolve_call(text, folders)
    return entry, entry.arguments(call)


def _model_parameters(entry: models.Entry) -> dict[str, Any]:
    """What a model takes, with the type of each."""
    return entry.parameters()


def federation(recipe: Recipe, data: str | Path | None = None) -> Federation:
    """The recipe's data, dealt out to its clients; `dataset` may also be your own .npz file or folder of images."""
    seed = recipe.seed if recipe.partition_seed is None else recipe.partition_seed
    settings: dict[str, Any] = {"seed": seed, "client_test": _client_test(recipe)}
    deal = parse_partition(recipe.partition, recipe.folders)
    if not own_data(recipe.dataset):
        return Federation.load(
            datasets.get(recipe.dataset, recipe.folders),
            deal,
            recipe.clients,
            data_dir=data,
            augment=recipe.augment,
            normalize=recipe.normalize,
            public=None if recipe.public is None else datasets.get(recipe.public, recipe.folders),
            public_samples=recipe.public_samples,
            samples=recipe.subset,
            **settings,
        )
    if recipe.public is not None:
        raise BadInput("public: your own data comes with its own public samples only in Python (public=(x, y))")
    if recipe.partition != "given":  # sites that are folders already come with theirs
        settings |= {"partition": deal, "clients": recipe.clients}
    path = Path(recipe.dataset)
    made = Federation.from_npz(path, **settings) if path.is_file() else Federation.from_folder(path, **settings)
    if recipe.partition == "given" and len(made) != recipe.clients:
        raise BadInput(
            f"clients: {path} holds {len(made)} sites, the recipe says {recipe.clients}; set clients={len(made)}"
        )
    return made if recipe.subset is None else made.subset(recipe.subset, seed)


def own_data(name: str) -> bool:
    """Whether a data set's name is a path to the user's own data."""
    return name not in datasets.DATASETS and Path(name).exists()


def validate(recipe: Recipe) -> list[SplitModel]:
    """Check a recipe's names and parameters, and that data and models fit, without any data; returns the models."""
    stages(recipe)
    local(recipe)
    classification_metrics.find(recipe.metrics, recipe.folders)
    deal = parse_partition(recipe.partition, recipe.folders)
    _client_test(recipe)
    if own_data(recipe.dataset):
        made = federation(recipe)
        shape, classes = made.input_shape, made.classes
    else:
        entry = datasets.get(recipe.dataset, recipe.folders)
        shape, classes = entry.shape, entry.classes
        if isinstance(deal, partition.Given):
            raise BadInput(f"partition: given is for data that is split by site already, {recipe.dataset} is not")
        if isinstance(deal, partition.Skewed):
            deal.check(classes, recipe.clients)
        held = entry.sizes[0] if entry.sizes else None
        if held is not None and (recipe.subset or 0) > held:
            raise BadInput(f"subset: {recipe.subset} is more than the {held} training samples of {recipe.dataset}")
        samples = recipe.subset or held
        if samples is not None and recipe.clients > samples:
            raise BadInput(f"clients: {recipe.clients} clients can't share {samples} samples; use at most {samples}")
        transform: Transform = entry.transform.replace(recipe.augment, recipe.normalize)
        transform.check(shape)
        public = None if recipe.public is None else datasets.get(recipe.public, recipe.folders)
        if public is not None and public.shape != shape:
            raise BadInput(
                f"public: samples of {public.name} have shape {public.shape}, client 0 and all "
                f"others hold {recipe.dataset} of {shape}: select a data set of the same shape"
            )
    made_models = architectures(recipe, shape, classes)
    for client, made_model in enumerate(made_models):
        _dry_run(made_model, shape, recipe, client)
    for algorithm in (method(recipe), *stages(recipe)):
        algorithm.check_head(made_models)
    for step in uploads(recipe):
        step.check(method(recipe))
    method(recipe).check_local(local(recipe))
    compatibility.check_models(method(recipe), made_models, range(len(made_models))[: recipe.clients], local(recipe))
    return made_models


def _dry_run(made: SplitModel, shape: tuple[int, ...], recipe: Recipe, client: int) -> None:
    """One blank input through the model: what it can't take shows here, not after the data is loaded."""
    was = made.training
    try:
        with torch.no_grad():
            made.eval()(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        name = recipe.model if isinstance(recipe.model, str) else recipe.model[client]
        raise BadInput(f"model: {name!r} can't take {recipe.dataset}'s inputs of shape {shape} ({reason})") from error
    finally:
        made.train(was)


def _client_test(recipe: Recipe) -> client_test.ClientTest | None:
    return client_test.parse("matched" if recipe.client_test == "from_test" else recipe.client_test)


def _make(registry: Registry[type[E]], name: str, given: Mapping[str, Any], folders: Sequence[Path]) -> E:
    found = registry.find(name, folders)
    prefix = f"stage.{name}." if registry.kind == "stage" else "method."
    return found(**check_all(given, parameters(found), f"{registry.kind} {name}", prefix))
