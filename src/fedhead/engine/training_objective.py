"""The objective of a run with its label smoothing and class weights, and the algorithms that can't follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fedhead.algorithm.base import Algorithm
from fedhead.algorithm.task import LocalTraining
from fedhead.core.errors import BadInput
from fedhead.core.objectives import OBJECTIVES, PER_CLIENT, Objective, balanced

if TYPE_CHECKING:
    from fedhead.data.federation import Federation


def check(algorithm: Algorithm, objective: str, local: LocalTraining) -> None:
    """Raise `BadInput` where a method or a stage can't follow the objective, or has a loss that settings don't reach.

    Args:
        algorithm: The method or the stage.
        objective: Name of the objective.
        local: Says whether there are label smoothing and class weights.
    """
    settings = OBJECTIVES[objective](local.label_smoothing, PER_CLIENT if local.class_weights else None)
    if algorithm.own_loss and settings.adjusted is not None:
        raise BadInput(
            f"{settings.adjusted}: {algorithm.name} trains by its own loss, which it does not reach; leave it out, or "
            "use a method that trains by the run's loss, such as fedavg"
        )


def make(federation: Federation, local: LocalTraining, device: torch.device, all_here: bool) -> Objective:
    """Return the objective that clients train by.

    Args:
        federation: The clients' data.
        local: Label smoothing and class weights.
        device: Where the weights are to be.
        all_here: Whether the data of all clients is here.

    Raises:
        BadInput: If the class weights do not fit the classes, or need the data of all clients.
    """
    kind, asked = OBJECTIVES["multiclass"], local.class_weights
    if asked is None or asked == PER_CLIENT:
        return kind(local.label_smoothing, asked and PER_CLIENT)
    if asked == "balanced":
        if not all_here and len(federation.train.y):
            raise BadInput(
                "class_weights: balanced needs the class counts of all clients, which real sites do not tell: use "
                "balanced_per_client, or give the numbers"
            )
        found = balanced(torch.from_numpy(federation.counts().sum(axis=0)).double())
    else:
        if len(asked) != federation.classes:
            raise BadInput(f"class_weights: {len(asked)} numbers were given, there are {federation.classes} classes")
        if not any(asked):
            raise BadInput("class_weights: all are 0, so that nothing would be trained; give positive numbers")
        found = torch.tensor(asked, dtype=torch.float64)
    return kind(local.label_smoothing, tuple(found.tolist()), found.to(device))
