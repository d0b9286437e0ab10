"""Class prototypes: what the prototype methods and the analyses sum over a client's samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.core.training.batch import Output
from fedhead.core.tree.tree import Tree, Weights
from fedhead.models.dropout import Dropout
from fedhead.models.split_model import SplitModel


def class_sums(client: Client, w: Weights, feature: Callable[[Output], Tensor]) -> Tensor:
    """Sum a feature over the training samples of a client, class by class.

    Sums of several clients can be added.

    Args:
        client: The client.
        w: Weights of the model.
        feature: Chooses the feature, such as `lambda out: out.z`.

    Returns:
        One row per class, [C, d].
    """
    classes = torch.arange(client.task.classes, device=client.counts.device)
    sums: Tensor = client.total(
        lambda batch: Tree(
            # a product with the memberships in place of an index: the same under vmap
            sums=((batch.y == classes.unsqueeze(1)) * batch.weight) @ feature(client.apply(w, batch.x, train=False))
        )
    )["sums"]
    return sums


def prototype_space(model: SplitModel) -> Callable[[Output], Tensor]:
    """Return the feature in which a model's prototypes are computed: z, or h where only dropout lies between the two.

    Prototypes are collected without dropout, so a distance to them must not be taken behind it.
    """
    dropped = isinstance(model.projection, Dropout)
    return lambda out: out.h if dropped else out.z
