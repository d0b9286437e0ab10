"""Class prototypes: what the prototype methods and the analyses sum over a client's samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.core.batch import Output
from fedhead.core.tree import Tree, Weights


def class_sums(client: Client, w: Weights, feature: Callable[[Output], Tensor]) -> Tensor:
    """The sum of a feature over the client's training samples, a row a class [C, d]; sums of clients add up."""
    classes = torch.arange(client.task.classes, device=client.counts.device)
    sums: Tensor = client.total(
        lambda batch: Tree(
            # a product with the memberships in place of an index: the same under vmap
            sums=((batch.y == classes.unsqueeze(1)) * batch.weight) @ feature(client.apply(w, batch.x, train=False))
        )
    )["sums"]
    return sums
