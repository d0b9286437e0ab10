"""Quadratic classifier of quadratic discriminant analysis."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        self.weight = nn.Parameter(torch.empty(classes, features, features))  # A_c
        self.mean = nn.Parameter(torch.empty(classes, features))  # μ_c
        self.bias = nn.Parameter(torch.empty(classes))  # b_c

    def forward(self, z: Tensor) -> Tensor:
        """Compute class scores."""
        return quadratic_scores(z, self.weight, self.mean, self.bias)


def quadratic_scores(z: Tensor, weight: Tensor, mean: Tensor, bias: Tensor) -> Tensor:
    """Return b_c − ‖A_c(z − μ_c)‖²/2 for features z [B, d], as [B, C].

    The difference is computed before the product: in the expanded form, squares of large means would cancel.
    """
    scaled = torch.einsum("cde,bce->bcd", weight, z[:, None, :] - mean)
    return bias - 0.5 * scaled.square().sum(-1)
