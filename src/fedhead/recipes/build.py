"""From a recipe to the components that it names, each with its parameters checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedhead import models
from fedhead.aggregators.base import AGGREGATORS, Aggregator
from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage, bind
from fedhead.algorithm.task import LocalTraining
from fedhead.algorithm.upload import UPLOADS, Upload
from fedhead.core.components.parameters import check_all, parameters
from fedhead.core.components.registry import Registry, instance
from fedhead.core.training import per_client_counts
from fedhead.core.training.optimizers import Optimizer, make_optimizer
from fedhead.core.training.schedules import make_schedule
from fedhead.engine.policies.outliers import OutlierPolicy
from fedhead.engine.policies.stragglers import Stragglers
from fedhead.methods import METHODS
from fedhead.models.build_many import build_many
from fedhead.models.split_model import SplitModel, freeze
from fedhead.recipes import initial_weights
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_data import Inputs
from fedhead.samplers.base import SAMPLERS, Sampler
from fedhead.stages import STAGES

E = TypeVar("E", bound=Algorithm)


def algorithms(recipe: Recipe) -> tuple[Method, tuple[Stage, ...]]:
    """The recipe's method, and the stages that follow its rounds in order; refuses one that does not go with it."""
    method = component(METHODS, recipe.method, recipe.method_parameters, recipe.folders)
    stages = [component(STAGES, name, recipe.stage_parameters.get(name, {}), recipe.folders) for name in recipe.stages]
    return method, bind(stages, method)


def uploads(recipe: Recipe) -> tuple[Upload, ...]:
    """What the clients' replies pass before they leave, in order."""
    return tuple(upload(text, recipe.folders) for text in recipe.uploads)


def upload(step: str | Upload | type[Upload], folders: Sequence[Path] = ()) -> Upload:
    """Return the upload of a text such as `clip(0.5)` or `mine.py:Noise(level=0.1)`, of a class, or the one given."""
    return instance(UPLOADS, step, Upload, folders)


def aggregator(asked: str | Aggregator | type[Aggregator] | None, folders: Sequence[Path] = ()) -> Aggregator | None:
    """Return the aggregator of a text such as `krum(2)` or `mine.py:Rule`, of a class, or the one given."""
    return None if asked is None else instance(AGGREGATORS, asked, Aggregator, folders)


def sampler(asked: str | Sampler | type[Sampler] | None, folders: Sequence[Path] = ()) -> Sampler | None:
    """Return the sampler of a text such as `weighted` or `mine.py:Rule(0.5)`, of a class, or the one given."""
    return None if asked is None else instance(SAMPLERS, asked, Sampler, folders)


def outliers(asked: str | OutlierPolicy | None) -> OutlierPolicy | None:
    """Return the policy of a text such as `drop(norm=5)`, or the one given."""
    return OutlierPolicy.from_text(asked) if isinstance(asked, str) else asked


def stragglers(asked: str | Stragglers | None) -> Stragglers | None:
    """Return the stragglers of a text such as `drop(0.2)`, or those given."""
    return Stragglers.from_text(asked) if isinstance(asked, str) else asked


def local(recipe: Recipe, optimizer: Optimizer | None = None) -> LocalTraining:
    """How the clients train; with an optimizer in place of the recipe's, where one is given."""
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


def architectures(recipe: Recipe, inputs: Inputs, head: str | None = None) -> list[SplitModel]:
    """The recipe's models, client i having model i mod n; its seed decides their weights.

    `model.<parameter>` goes to every model that takes it; in the list, name(parameter=value) is for that model alone.

    Args:
        recipe: What names the models and their parameters.
        inputs: Shape of their inputs, and number of outputs.
        head: The head that the method needs, for models whose recipe names none.
    """
    checked = model_settings(recipe)
    if head is not None:
        for _, given in checked:
            given.setdefault("head", head)
    made = build_many(checked, inputs.shape, inputs.outputs, recipe.seed, recipe.folders)
    if recipe.weights is not None:
        initial_weights.start_from(made, recipe.weights, recipe.folders)
    freeze(made, recipe.freeze)
    return made


def model_settings(recipe: Recipe) -> list[tuple[models.Architecture, dict[str, Any]]]:
    """The recipe's models with the parameters that it gives to each, checked."""
    texts = recipe.model if isinstance(recipe.model, tuple) else (recipe.model,)
    asked = [_model_and_parameters(text, recipe.folders) for text in texts]
    hints = [_model_parameters(entry) for entry, _ in asked]
    common = {word: value for word, value in recipe.model_parameters.items() if any(word in own for own in hints)}
    if recipe.model_parameters.keys() - common.keys():
        check_all(
            recipe.model_parameters, hints[0], f"model {asked[0][0].name}", "model."
        )  # says which word is unknown
    checked = []
    for (entry, special), own in zip(asked, hints, strict=True):
        given = {word: value for word, value in common.items() if word in own} | special
        checked.append((entry, check_all(given, own, f"model {entry.name}", "model.")))
    return checked


def _model_and_parameters(text: str, folders: Sequence[Path]) -> tuple[models.Architecture, dict[str, Any]]:
    """The model and the parameters of a text such as `protocnn(channels=18)`."""
    call, entry = models.MODELS.resolve_call(text, folders)
    return entry, entry.arguments(call)


def _model_parameters(entry: models.Architecture) -> dict[str, Any]:
    """What a model takes, with the type of each."""
    return entry.parameters()


def component(registry: Registry[type[E]], name: str, given: Mapping[str, Any], folders: Sequence[Path] = ()) -> E:
    """Return a method or a stage of a name with parameters, which are checked."""
    found = registry.find(name, folders)
    prefix = f"stage.{name}." if registry.kind == "stage" else "method."
    return found(**check_all(given, parameters(found), f"{registry.kind} {name}", prefix))
