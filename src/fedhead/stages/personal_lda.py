"""Personal heads by linear discriminant analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.algorithm.stage import stage
from fedhead.calibration.linear_system import shrink
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.tree.tree import Tree
from fedhead.stages.closed_form import NEVER, ClosedFormHead
from fedhead.stages.lda import LDA
from fedhead.stages.personal_head import PersonalHead, solve


@stage("personal_lda")
@dataclass(frozen=True)
class PersonalLDA(PersonalHead):
    """Linear discriminant analysis on a client's own statistics interpolated with all clients'; see `PersonalHead`.

    A client chooses its weight t by the cross entropy. The shrinkage is chosen from the covariance of all clients.
    """

    shrinkage: Annotated[float, AtLeast(0), AtMost(1)] | None = None  # shrinkage; null: as `lda` chooses it

    def prerequisite(self) -> ClosedFormHead:
        """Return linear discriminant analysis on all clients' sums."""
        return LDA(self.shrinkage, absent=self.absent, kept_for=self.name, method=self.method, release=self.release)

    def settings(self, chosen: Tree) -> list[Tree]:
        """Return the shrinkage."""
        return [Tree(shrinkage=chosen["shrinkage"])]

    def head_of(self, sums: Tree, settings: Tree) -> Tree:
        """Return w_c = Σ⁻¹μ_c and b_c = log π_c − μ_cᵀΣ⁻¹μ_c/2, as `lda` does."""
        count, total = sums["count"], sums["sum"]
        there, samples = count > 0, count.sum()
        center = total.sum(-2) / samples
        mean = torch.where(there[:, None], total / torch.where(there, count, 1.0)[:, None] - center, 0.0)
        within = sums["outer"] - samples * torch.outer(center, center) - (count[:, None] * mean).mT @ mean
        weight = solve(shrink(within / samples, settings["shrinkage"]), mean.mT).mT
        bias = torch.where(there, count / samples, 1.0).log() - weight @ center - 0.5 * (weight * mean).sum(-1)
        return Tree(weight=weight, bias=torch.where(there, bias, NEVER))

    def losses(self, scores: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the cross entropy."""
        return F.cross_entropy(scores, y, reduction="none")
