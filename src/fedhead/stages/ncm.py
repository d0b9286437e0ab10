"""Nearest class mean, one message per client (FedNCM: Legate et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn import functional as F

from fedhead.algorithm.stage import stage
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import Kind
from fedhead.core.tree.tree import Tree
from fedhead.stages.closed_form import ClosedFormHead


@stage("ncm")
@dataclass(frozen=True)
class NCM(ClosedFormHead):
    """Nearest class mean (FedNCM; Legate et al., 2023, Algorithm 1).

    argmin_c ‖z − μ_c‖² = argmax_c μ_cᵀz − ‖μ_c‖²/2, a linear head. With `metric="cosine"`, weights are the normalized
    means and the bias is 0, as in the paper's experiments: argmax_c cos(μ_c, z). The part of the scores that is equal
    for all classes is subtracted: it does not change the prediction, but reduces numerical precision.
    """

    metric: Literal["euclidean", "cosine"] = "euclidean"  # distance to the class means

    protectable: ClassVar[bool] = True
    kind: ClassVar[Kind] = "means"

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Return the linear head of the class means."""
        mean, center = statistics.mean(), statistics.center()
        if self.metric == "cosine":
            weight = F.normalize(mean, dim=1)
            return Tree(weight=weight - weight.mean(0), bias=weight.new_zeros(len(weight)))
        mean = mean - center
        return Tree(weight=mean, bias=-mean @ center - 0.5 * mean.square().sum(1))
