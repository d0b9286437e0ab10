"""Class prototypes, for prototype methods and analyses."""

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
    """Sum a feature over a client's training samples, per class.

    The sums of several clients can be added.

    Args:
        client: The client.
        w: Weights of the model.
        feature: Function that selects the feature, such as `lambda out: out.z`.

    Returns:
        One row per class, [C, d].
    """
    classes = torch.arange(client.task.classes, device=client.counts.device)
    sums: Tensor = client.total(
        lambda batch: Tree(
            # matrix product with one-hot labels instead of indexing, which works under vmap
            sums=((batch.y == classes.unsqueeze(1)) * batch.weight) @ feature(client.apply(w, batch.x, train=False))
        )
    )["sums"]
    return sums


def prototype_space(model: SplitModel) -> Callable[[Output], Tensor]:
    """Return a function that selects the features of prototypes: z, or h if the projection is only dropout.

    Prototypes are computed without dropout, so distances to them must be computed before it.
    """
    dropped = isinstance(model.projection, Dropout)
    return lambda out: out.h if dropped else out.z
