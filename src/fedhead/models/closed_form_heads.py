"""Classifiers of closed-form heads, which store and compute in double precision.

Scores of a closed-form head are small differences of large products if features lie far from 0, as after a ReLU. So
they are exact in every precision of the run: neither autocast nor TF32 rounds products of float64.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.core.training import random

TINY = 1e-100  # smallest norm: squares of smaller features are 0 in float64, so their norm can't be computed


class DoubleLinear(nn.Linear):
    """Linear classifier in double precision; a stage such as `ridge` sets its parameters.

    Args:
        features: Dimension of the features d.
        classes: Number of classes C.
    """

    def __init__(self, features: int, classes: int):
        nn.Module.__init__(self)  # draws no random numbers
        self.in_features, self.out_features = features, classes
        self.weight = nn.Parameter(torch.empty(classes, features, dtype=torch.float64))
        self.bias = nn.Parameter(torch.empty(classes, dtype=torch.float64))

    def forward(self, z: Tensor) -> Tensor:
        """Compute class scores."""
        return linear_scores(z, self.weight, self.bias)


class BoundedLinear(DoubleLinear):
    """Linear classifier of features with a bounded norm, as statistics with differential privacy are computed from.

    Args:
        features: Dimension of the features d.
        classes: Number of classes C.
        clip: Maximum norm of the features; None: scale them to unit norm.
        centered: Whether a mean is subtracted from the features.
        directions: Number of random directions that the features are projected on; None: no projection.
    """

    def __init__(
        self, features: int, classes: int, clip: float | None, centered: bool = False, directions: int | None = None
    ):
        super().__init__(directions or features, classes)
        self.in_features, self.clip, self.directions = features, clip, directions
        width = directions or features
        self.center = nn.Parameter(torch.empty(width, dtype=torch.float64)) if centered else None

    def forward(self, z: Tensor) -> Tensor:
        """Compute class scores."""
        return linear_scores(bounded(z, self.clip, self.center, self.directions), self.weight, self.bias)


class QuadraticHead(nn.Module):
    """Classifier with scores b_c − ‖A_c(z − μ_c)‖²/2; a stage such as `qda` sets its parameters.

    Args:
        features: Dimension of the features d.
        classes: Number of classes C.
    """

    kind = "quadratic"

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.in_features, self.out_features = features, classes
        self.weight = nn.Parameter(torch.empty(classes, features, features, dtype=torch.float64))  # A_c
        self.mean = nn.Parameter(torch.empty(classes, features, dtype=torch.float64))  # μ_c
        self.bias = nn.Parameter(torch.empty(classes, dtype=torch.float64))  # b_c

    def forward(self, z: Tensor) -> Tensor:
        """Compute class scores."""
        return quadratic_scores(z, self.weight, self.mean, self.bias)


def bounded(z: Tensor, clip: float | None, center: Tensor | None = None, directions: int | None = None) -> Tensor:
    """Return features [B, d] clipped to a norm, or scaled to unit norm, in float64.

    Args:
        z: Features.
        clip: Maximum norm; None: scale to unit norm.
        center: Mean of bounded features, which is subtracted before the features are bounded again; None: none.
        directions: Number of random directions that the features are projected on first; None: no projection.
    """
    z = z.double().nan_to_num(0, 0, 0)  # an error would reveal that a sample has such features
    if directions is not None:
        z = z @ _random_directions(directions, z.shape[-1]).to(z).mT
    z = z if center is None else bounded(z, clip) - center
    norm: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z * ((1.0 if clip is None else clip) / norm.clamp_min(TINY if clip is None else clip))


@cache
def _random_directions(count: int, features: int) -> Tensor:
    """Return a Gaussian matrix [count, features], the same for all runs: it is public, as the bound follows it."""
    source = np.random.Generator(np.random.PCG64(random.key("directions", count, features)))
    return torch.from_numpy(source.standard_normal((count, features)))


def linear_scores(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return w_cᵀz + b_c for features z [B, d], as [B, C]; computed in float64, returned in float32 or z's dtype."""
    return _rounded(F.linear(z.double(), weight.double(), bias.double()), z)


def quadratic_scores(z: Tensor, weight: Tensor, mean: Tensor, bias: Tensor) -> Tensor:
    """Return b_c − ‖A_c(z − μ_c)‖²/2 for features z [B, d], as [B, C]; see `linear_scores`.

    The difference is computed before the product: in the expanded form, squares of large means would cancel.
    """
    scaled = torch.einsum("cde,bce->bcd", weight.double(), z.double()[:, None, :] - mean)
    return _rounded(bias - 0.5 * scaled.square().sum(-1), z)


def _rounded(scores: Tensor, z: Tensor) -> Tensor:
    return scores.to(torch.promote_types(z.dtype, torch.float32))
