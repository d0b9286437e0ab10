"""Class prototypes: what the prototype methods and the analyses sum over a client's samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedhead.client import Client
from fedhead.tree import Tree, Weights
from fedhead.types import Output


def class_sums(me: Client, w: Weights, feature: Callable[[Output], Tensor]) -> Tensor:
    """The sum of a feature over the client's training samples, a row a class [C, d]; sums of clients add up."""
    classes = torch.arange(me.task.classes, device=me.counts.device)
    sums: Tensor = me.total(
        lambda batch: Tree(
            # a product with the memberships in place of an index: the same under vmap
            sums=((batch.y == classes.unsqueeze(1)) * batch.weight) @ feature(me.apply(w, batch.x, train=False))
        )
    )["sums"]
    return sums
