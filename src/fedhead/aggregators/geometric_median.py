"""Geometric median of RFA (Pillutla, Kakade and Harchaoui, 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedhead.aggregators.base import Aggregator, aggregator, inner_products, squared_distances
from fedhead.core.components.ranges import Above, AtLeast
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import tree_mean


def weiszfeld_shares(products: Tensor, smoothing: float, iterations: int) -> Tensor:
    """Return the coefficients a of the geometric median Σ a_k x_k, by the smoothed Weiszfeld algorithm, [K].

    Iterates a_k ∝ 1 / max(ν, ‖z − x_k‖) with z = Σ a_k x_k. Inner products are sufficient:
    ‖x_k − z‖² = ⟨x_k, x_k⟩ − 2 ⟨x_k, z⟩ + ⟨z, z⟩.

    Args:
        products: Inner products of all pairs of updates, [K, K].
        smoothing: ν.
        iterations: Maximum number of iterations.
    """
    # A hostile client can shift the usual start, the mean, arbitrarily far: start from median distances instead.
    shares = _inverse(squared_distances(products).sqrt().median(dim=1).values, smoothing)
    for _ in range(iterations):
        along = products @ shares
        distances = (products.diagonal() - 2 * along + shares @ along).clamp_min(0).sqrt()
        new = _inverse(distances, smoothing)
        if torch.allclose(new, shares, rtol=1e-9, atol=0):
            return new
        shares = new
    return shares


def _inverse(distances: Tensor, smoothing: float) -> Tensor:
    weights = 1 / distances.clamp_min(smoothing)
    return weights / weights.sum()


@aggregator("geometric_median")
@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """Point with the smallest sum of distances to all updates (RFA; Pillutla et al., 2022)."""

    smoothing: Annotated[float, Above(0)] = 1e-6  # ν, lower bound of the distances
    iterations: Annotated[int, AtLeast(1)] = 200  # maximum number of iterations (smoothed Weiszfeld algorithm)

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Return argmin_z Σ ‖z − x_k‖."""
        shares = weiszfeld_shares(inner_products(updates), self.smoothing, self.iterations)
        return tree_mean(updates, shares.tolist())
