"""FedCOF: covariances for free, estimated from the clients' class means alone (Goswami et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.algorithm.phase import Replies
from fedhead.algorithm.stage import stage
from fedhead.algorithm.task import Task
from fedhead.calibration.linear_system import solve
from fedhead.calibration.statistics import Statistics, merge
from fedhead.calibration.sums import Kind
from fedhead.calibration.symmetric import pack
from fedhead.core.components.ranges import AtLeast
from fedhead.core.tree.tree import Tree
from fedhead.stages.closed_form import ClosedFormHead, as_classifier


@stage("fedcof")
@dataclass(frozen=True)
class FedCOF(ClosedFormHead):
    """Ridge regression with covariances estimated from the spread of the clients' class means.

    This is FedCOF (Goswami et al., 2025, Algorithm 1). Means of n_kc samples have the covariance Σ_c/n_kc. Hence Σ̂_c =
    Σ_k n_kc (μ_kc − μ_c)(μ_kc − μ_c)ᵀ / (K_c − 1) + γI over the K_c clients with class c is unbiased up to γ if the
    clients' samples are identically distributed. The head is W = Ĝ⁻¹B with Ĝ = Σ_c (N_c − 1) Σ̂_c + N μμᵀ, without
    the scatter between classes, normalized per class. Clients send C(d + 1) numbers; the server needs each reply.
    """

    gamma: Annotated[float, AtLeast(0)] = 1.0  # γ, multiple of the identity that is added to each covariance

    sums: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[Kind] = "means"

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Estimate the covariances and solve for the head."""
        self.merge(replies, task)  # validates each reply
        return as_classifier(self.fit_clients([self.received(sent) for sent in replies.sent]))

    def fit_clients(self, parts: Sequence[Statistics]) -> Tree:
        """Fit the head to the class means of several clients."""
        return self.fit(second_moment_from_means(parts, self.gamma))

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Return the solution's weights, normalized per class, minus their mean over classes; the bias is 0."""
        moment = statistics.second_moment()
        change = "above 0" if self.gamma == 0 else "higher, and have two samples or more of some class"
        fix = f"set stage.{self.name}.gamma {change}"
        weight = solve(
            moment, statistics.sum.mT, moment.diagonal(), f"{self.name}: the estimated second moment", fix
        ).mT
        weight = F.normalize(weight, dim=1)
        return Tree(weight=weight - weight.mean(0), bias=weight.new_zeros(len(weight)))


def second_moment_from_means(parts: Sequence[Statistics], gamma: float) -> Statistics:
    """Return pooled statistics whose second moment Ĝ is estimated from the class means of clients.

    Args:
        parts: Statistics of each client, of any kind; only counts and sums are read.
        gamma: γ, multiple of the identity that is added to each covariance.
    """
    means = [replace(part, outer=part.count.new_zeros(0)) for part in parts]
    total = merge(means)
    holders = torch.stack([part.count > 0 for part in parts]).sum(0)  # K_c
    freedom = (total.count - 1).clamp_min(0)
    weight = torch.where(holders > 1, freedom / (holders - 1).clamp_min(1), 0.0)
    moment: Tensor = total.sum.new_zeros(total.features, total.features)
    for part in parts:
        deviation = (part.mean() - total.mean()) * (weight * part.count).sqrt()[:, None]
        moment += deviation.mT @ deviation
    moment.diagonal().add_(gamma * freedom.sum())
    feature_sum = total.sum.sum(0)
    moment += torch.outer(feature_sum, feature_sum) / total.count.sum().clamp_min(1)
    return replace(total, outer=pack(moment))
