"""Compatibility checks of methods and models, before training."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.method import Method
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.executors.client.client_round import initial_trained
from fedhead.models.split_model import SplitModel, weights


def assignment(assign: Sequence[int] | None, models: int, clients: int) -> list[int]:
    """Return the model index of each client: as given, or i mod n for client i."""
    if assign is None:
        return [client % models for client in range(clients)]
    if len(assign) != clients:
        raise BadInput(
            f"assign gives {len(assign)} clients a model, but there are {clients}: give one number per client"
        )
    for client, number in enumerate(assign):
        if not 0 <= number < models:
            raise BadInput(f"client {client}: assign gives it model {number}, but the models are 0 … {models - 1}")
    return list(assign)


def check_models(method: Method, models: Sequence[SplitModel], assign: Sequence[int], local: LocalTraining) -> None:
    """Raise `BadInput`, naming the first client concerned, if a method can't train these models together."""
    first = {group: client for client, group in reversed(list(enumerate(assign)))}  # first client of each model
    used = [(first[group], model) for group, model in enumerate(models) if group in first]
    _check_same_shapes(method, used)
    _check_batch_norm(used, local)


def check_rounds(rounds: int, stages: Sequence[Stage]) -> None:
    """Raise `BadInput` for a run that would compute nothing."""
    if not rounds and not stages:
        raise BadInput("rounds: 0 trains nothing, and there is no stage either: name one, such as stages=[ridge]")


def check_trained(algorithm: Algorithm, method: Method, task: Task) -> None:
    """Raise `BadInput` for a phase whose trained parameters are all frozen.

    Args:
        algorithm: Method, or a stage that follows it.
        method: Method of the run; it determines the parameters to train.
        task: Task with the model.
    """
    if task.model.frozen:
        w = weights(task.model)
        initial_trained(method, algorithm.phases(task), task, w, method.init_client(w, task))


def _check_same_shapes(method: Method, models: Sequence[tuple[int, SplitModel]]) -> None:
    """Raise `BadInput` if averaged entries differ in name or shape between architectures."""
    name = method.name or type(method).__name__
    first, reference = models[0]
    shared = {n: tuple(t.shape) for n, t in weights(reference).part(*method.shared).items()}
    for client, model in models[1:]:
        shapes = {n: tuple(t.shape) for n, t in weights(model).part(*method.shared).items()}
        if method.shared == ("classifier",) and shared.keys() == shapes.keys() and model.features != reference.features:
            raise BadInput(
                f"client {client}: its features have {model.features} dimensions and client {first}'s have "
                f"{reference.features}, but {name} averages their classifiers: give every model the same feature "
                f"layer, such as model.feature_layer={reference.features}"
            )
        for entry in [*shared, *shapes]:
            if shared.get(entry) == shapes.get(entry):
                continue
            mine, theirs = shapes.get(entry, "not there"), shared.get(entry, "not there")
            fix = (
                "give every model the same head"
                if method.shared == ("classifier",)
                else "use one architecture, or share only the classifier, as fedclassavg does with share=classifier"
            )
            raise BadInput(
                f"client {client}: {name} averages {entry!r}, which is {mine} in its model and {theirs} in client "
                f"{first}'s: {fix}"
            )


def _check_batch_norm(models: Sequence[tuple[int, SplitModel]], local: LocalTraining) -> None:
    """Raise `BadInput` for BatchNorm with batches of one sample, which have no variance."""
    for client, model in models:
        layers = [n for n, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if local.batch_size == 1 and layers:
            raise BadInput(
                f"client {client}: batch_size 1 can't train its model, whose BatchNorm layer {layers[0]!r} needs at "
                f"least 2 samples per batch: use batch_size 2 or more"
            )
