"""Ridge regression on one-hot labels, one message per client (Fed3R: Fanì et al., 2024; AFL: He et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch.nn import functional as F

from fedhead.algorithm.stage import stage
from fedhead.calibration.private_statistics import noise_penalty
from fedhead.calibration.ridge import RidgePath
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import Kind
from fedhead.core.components.ranges import Above
from fedhead.core.tree.tree import Tree
from fedhead.stages.closed_form import ClosedFormHead


@stage("ridge")
@dataclass(frozen=True)
class Ridge(ClosedFormHead):
    """Ridge regression on all clients' features.

    W = (ΣG_k + λI)⁻¹ ΣB_k, with G_k = ZᵀZ and B_k = ZᵀY of client k. This is Fed3R (Fanì et al., 2024) and AFL (He et
    al., 2025), which differ in how the sums are sent. The penalty λ is given, or chosen by generalized
    cross-validation, which needs only the sums.
    """

    # λ, ridge penalty; null: chosen by generalized cross-validation or, with differential privacy, from the noise
    alpha: Annotated[float, Above(0)] | None = None
    intercept: bool = True  # intercept of the regression; Fed3R and AFL have none
    normalize: bool = False  # scaling of each class's weights to unit norm, as in Fed3R

    protectable: ClassVar[bool] = True
    kind: ClassVar[Kind] = "pooled"

    def choose(self, statistics: Statistics, path: RidgePath) -> float:
        """Return the penalty λ for these statistics."""
        if self.alpha is not None:
            return self.alpha
        return noise_penalty(statistics) if statistics.noise else path.best()

    def chosen(self, statistics: Statistics) -> Tree:
        """Return the penalty."""
        path = RidgePath.of(statistics, self.intercept)
        return Tree(alpha=statistics.count.new_tensor(self.choose(statistics, path)))

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Return the ridge solution."""
        path = RidgePath.of(statistics, self.intercept)
        head = path.solve(self.choose(statistics, path))
        if not self.normalize:
            return head
        norm = head["weight"].norm(dim=1).clamp_min(1e-300)
        return Tree(weight=F.normalize(head["weight"], dim=1), bias=head["bias"] / norm)
