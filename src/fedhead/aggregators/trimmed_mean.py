"""Coordinate-wise trimmed mean (Yin et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedhead.aggregators.base import Aggregator, aggregator
from fedhead.core.components.ranges import AtLeast
from fedhead.core.tree.tree import Tree


@aggregator("trimmed_mean")
@dataclass(frozen=True)
class TrimmedMean(Aggregator):
    """Mean of every coordinate without its smallest and largest values (Yin et al., 2018, Definition 2).

    The paper's β is `byzantine` divided by the number of clients.
    """

    byzantine: Annotated[int, AtLeast(1)] = 1  # maximum number of hostile clients; values trimmed at each end

    def min_clients(self) -> int:
        """Return the minimum number of clients, which leaves one value after trimming."""
        return 2 * self.byzantine + 1

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Return the mean of the remaining values of each coordinate."""

        def trimmed(*rows: Tensor) -> Tensor:
            return torch.stack(rows).sort(dim=0).values[self.byzantine : len(rows) - self.byzantine].mean(dim=0)

        return updates[0].map(trimmed, *updates[1:])
