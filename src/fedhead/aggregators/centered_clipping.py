"""Centered clipping: norm clipping around the previous update (Karimireddy, He and Jaggi, 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from fedhead.aggregators.base import Aggregator, aggregator
from fedhead.core.components.ranges import Above, AtLeast, AtMost
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import tree_mean


@aggregator("centered_clipping")
@dataclass(frozen=True)
class CenteredClipping(Aggregator):
    """Mean of updates clipped by their distance to the previous aggregated update (Karimireddy et al., 2021).

    `momentum=0` clips the updates themselves (Sun et al., 2019). In the paper clients send momenta. Here they send
    model updates, and `momentum` scales the previous aggregated update.
    """

    remembers: ClassVar[bool] = True
    radius: Annotated[float, Above(0)] | None = None  # τ; None: median distance from the center
    momentum: Annotated[float, AtLeast(0), AtMost(1)] = 1.0  # v = momentum × previous aggregated update

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Return v + 1/K Σ (x_k − v) min(1, τ / ‖x_k − v‖) (CC)."""
        center = updates[0].zeros() if previous is None else self.momentum * previous
        offsets = [update - center for update in updates]
        lengths = torch.stack([_length(offset) for offset in offsets])
        radius = lengths.median() if self.radius is None else lengths.new_tensor(self.radius)
        factors = torch.where(lengths > radius, radius / lengths, 1.0).tolist()
        clipped = [offset * factor for offset, factor in zip(offsets, factors, strict=True)]
        return center + tree_mean(clipped, [1.0] * len(clipped))


def _length(update: Tree) -> torch.Tensor:
    return torch.stack([t.double().square().sum() for t in update.vector().values()]).sum().sqrt()
