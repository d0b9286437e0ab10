"""The norms of a classifier's weight vectors: a class that a client has much of grows a long one (CCVR, Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from fedhead.core.errors import BadInput
from fedhead.core.tree import Tree


def classifier_norms(w: Mapping[str, Tensor]) -> Tensor:
    """‖φ_c‖ of every class, [C]."""
    if "classifier.weight" not in w:
        raise BadInput("the model's classifier has no weight vectors, so there are no norms to look at")
    norms: Tensor = torch.linalg.vector_norm(w["classifier.weight"].detach().double(), dim=1)
    return norms.cpu()


def client_norms(models: Mapping[int, Tree]) -> Tensor:
    """The norms of all clients' classifiers, [K, C]."""
    return torch.stack([classifier_norms(w) for w in models.values()])


def spread(norms: Tensor) -> float:
    """How unequal a classifier's norms are: their standard deviation over their mean (0: all equal)."""
    return float(norms.std(unbiased=False) / norms.mean())


def correlation(norms: Tensor, counts: Tensor) -> float:
    """How the norms follow the label counts: the mean over clients of their correlation over classes, [K, C] each."""
    a, b = norms.double(), counts.double()
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    each = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-12)
    return cast(float, each.mean().item())
