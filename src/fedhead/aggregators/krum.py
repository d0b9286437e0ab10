"""Krum and multi-Krum: selection of updates with near neighbours (Blanchard et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedhead.aggregators.base import Aggregator, aggregator, inner_products, squared_distances
from fedhead.core.components.ranges import AtLeast
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import tree_mean


def krum_scores(distances: Tensor, hostile: int) -> Tensor:
    """Return the scores s(i) = Σ ‖x_i − x_j‖² over the K − f − 2 nearest neighbours (section 4), [K].

    Args:
        distances: Squared distances of all pairs, [K, K].
        hostile: f, number of hostile clients.
    """
    nearest = distances.sort(dim=1).values[:, 1 : len(distances) - hostile - 1]  # the first is the update itself
    return nearest.sum(dim=1)


@aggregator("krum")
@dataclass(frozen=True)
class Krum(Aggregator):
    """Update that is nearest to its neighbours (Blanchard et al., 2017)."""

    byzantine: Annotated[int, AtLeast(1)] = 1  # f, maximum number of hostile clients in a round

    def min_clients(self) -> int:
        """Return the smallest K with 2f + 2 < K (Proposition 4.2)."""
        return 2 * self.byzantine + 3

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Return the update with the lowest score."""
        scores = krum_scores(squared_distances(inner_products(updates)), self.byzantine)
        return updates[int(scores.argmin())]


@aggregator("multi_krum")
@dataclass(frozen=True)
class MultiKrum(Krum):
    """Mean of the K − f updates with the lowest Krum scores (Blanchard et al., 2017)."""

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Return the mean of the K − f updates with the lowest scores."""
        scores = krum_scores(squared_distances(inner_products(updates)), self.byzantine)
        best = sorted(scores.argsort()[: len(updates) - self.byzantine].tolist())
        return tree_mean([updates[i] for i in best], [1.0] * len(best))
