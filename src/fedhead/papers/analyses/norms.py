"""Norms of a classifier's weight vectors, which are larger for classes with many samples (CCVR, Fig. 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from fedhead.core.system.errors import require
from fedhead.core.tree.tree import Tree


def classifier_norms(w: Mapping[str, Tensor]) -> Tensor:
    """Return ‖φ_c‖ of every class, [C]."""
    require("classifier.weight" in w, "the model's classifier has no weight vectors, so there are no norms to look at")
    norms: Tensor = torch.linalg.vector_norm(w["classifier.weight"].detach().double(), dim=1)
    return norms.cpu()


def client_norms(models: Mapping[int, Tree]) -> Tensor:
    """Return the norms of all clients' classifiers, [K, C]."""
    return torch.stack([classifier_norms(w) for w in models.values()])


def spread(norms: Tensor) -> float:
    """Return the coefficient of variation of the norms: standard deviation over mean (0: all equal)."""
    return float(norms.std(unbiased=False) / norms.mean())


def correlation(norms: Tensor, counts: Tensor) -> float:
    """Return the correlation of norms and label counts [K, C] over classes, averaged over clients."""
    a, b = norms.double(), counts.double()
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    each = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)).clamp_min(1e-12)
    return cast(float, each.mean().item())
