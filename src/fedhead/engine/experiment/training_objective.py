"""Training objective with label smoothing and class weights, and its compatibility with algorithms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.objectives import OBJECTIVES, PER_CLIENT, Objective, balanced
from fedhead.methods import METHODS
from fedhead.stages import STAGES

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation


def check(algorithm: Algorithm, objective: str, local: LocalTraining) -> None:
    """Raise `BadInput` if an algorithm doesn't support the objective, label smoothing or class weights.

    Args:
        algorithm: Method or stage.
        objective: Name of the objective.
        local: Local training, with label smoothing and class weights.
    """
    if objective not in algorithm.objectives:
        raise BadInput(
            f"{algorithm.name} works on classes and can't follow objective={objective}: use one of "
            f"{', '.join(_supporting_algorithms(algorithm, objective))}{_HINTS.get(objective, '')}"
        )
    requested = OBJECTIVES[objective](local.label_smoothing, PER_CLIENT if local.class_weights else None)
    if requested.adjusted is None:
        return
    if objective == "regression":
        raise BadInput(f"{requested.adjusted}: it is for classes, objective=regression has none; leave it out")
    if algorithm.own_loss:
        raise BadInput(
            f"{requested.adjusted}: {algorithm.name} trains by its own loss, which ignores it; leave it out, or "
            "use a method that trains by the run's loss, such as fedavg"
        )


_SMALLEST = 1e-6  # smallest positive class weight, since a batch's loss is divided by the sum of its weights
_HINTS = {"binary": ", or state objective=multiclass, with one logit per class"}


def _supporting_algorithms(algorithm: Algorithm, objective: str) -> list[str]:
    """Return the names of the built-in methods, or stages, that support an objective."""
    registry = STAGES if isinstance(algorithm, Stage) else METHODS
    return [name for name in registry if objective in registry[name].objectives]


def make(federation: Federation, local: LocalTraining, device: torch.device, all_here: bool) -> Objective:
    """Return the training objective of the clients.

    Args:
        federation: Data of the clients.
        local: Label smoothing and class weights.
        device: Device of the class weights.
        all_here: Whether this machine holds the data of all clients.

    Raises:
        BadInput: If the class weights do not fit the classes, or need the data of all clients.
    """
    kind, option = OBJECTIVES[federation.objective], local.class_weights
    if federation.has_classes and federation.classes < 2:
        raise BadInput("there is only one class, so there is nothing to classify: give classes=2 or more")
    if option == PER_CLIENT and not kind.has_classes:
        raise BadInput(
            f"class_weights: {option} needs classes, objective={kind.name} has none; give numbers, or balanced"
        )
    if option is None or option == PER_CLIENT:
        return kind(local.label_smoothing, option and PER_CLIENT)
    if option == "balanced":
        if not all_here and len(federation.train.y):
            raise BadInput(
                "class_weights: balanced needs the class counts of all clients, which real sites do not share: use "
                "balanced_per_client, or give the numbers"
            )
        weights = _balanced(federation)
    else:
        if len(option) != federation.classes:
            raise BadInput(f"class_weights: {len(option)} numbers were given, there are {federation.classes} classes")
        if not any(option):
            raise BadInput("class_weights: all are 0, so that nothing would be trained; give positive numbers")
        if bad := [weight for weight in option if weight and not _SMALLEST <= weight <= 1 / _SMALLEST]:
            raise BadInput(
                f"class_weights: {bad[0]} is too far from 1 for the loss of a batch; divide all by their largest, or "
                "give 0"
            )
        weights = torch.tensor(option, dtype=torch.float64)
    return kind(local.label_smoothing, tuple(weights.tolist()), weights.to(device))


def _balanced(federation: Federation) -> Tensor:
    """Return balanced class weights; for multilabel, the ratio of negative to positive samples of each label."""
    if federation.has_classes:
        return balanced(torch.from_numpy(federation.counts().sum(axis=0)).double())
    y = federation.train.y[torch.from_numpy(np.concatenate(federation.indices))].double()
    positive = y.sum(0)
    return torch.where(positive > 0, (len(y) - positive) / positive.clamp_min(1), 1.0)
