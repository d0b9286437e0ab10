"""Coordinate-wise median (Yin et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhead.aggregators.base import Aggregator, aggregator
from fedhead.core.tree.tree import Tree


@aggregator("median")
@dataclass(frozen=True)
class CoordinateMedian(Aggregator):
    """Median of every coordinate (Yin et al., 2018, Definition 1).

    If fewer than half of the clients are hostile, each coordinate lies between those of two honest clients.
    """

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Return the middle value, or the mean of the two middle values."""
        return updates[0].map(_median, *updates[1:])


def _median(*rows: Tensor) -> Tensor:
    ordered = torch.stack(rows).sort(dim=0).values
    low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
    return low / 2 + high / 2
