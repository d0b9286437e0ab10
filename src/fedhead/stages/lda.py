"""Linear discriminant analysis, one message per client (FedCGS: Guan et al., 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from fedhead.algorithm.stage import stage
from fedhead.calibration.linear_system import ledoit_wolf, shrink, solve
from fedhead.calibration.private_statistics import noise_penalty
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import Kind
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.tree.tree import Tree
from fedhead.stages.closed_form import ClosedFormHead


@dataclass(frozen=True)
class GaussianHead(ClosedFormHead):
    """Base of LDA and QDA, which assume Gaussian features per class.

    Covariances are maximum-likelihood estimates, shrunk to (1 − s)Σ + s·tr(Σ)/d·I, as in scikit-learn's solvers
    `lsqr` and `eigen`.
    """

    # s, shrinkage; null: Ledoit-Wolf's for Gaussian features, computed from the sums (Chen et al., 2010, Eq. 17 and 19)
    shrinkage: Annotated[float, AtLeast(0), AtMost(1)] | None = None

    def shrunk(self, covariance: Tensor, samples: float) -> Tensor:
        """Return the covariance of a number of samples, shrunk by `shrinkage`."""
        return shrink(covariance, ledoit_wolf(covariance, samples) if self.shrinkage is None else self.shrinkage)

    def log_priors(self, count: Tensor) -> Tensor:
        """Return the logarithms of the classes' shares of all samples, [C]."""
        return (count / count.sum()).log()

    @property
    def remedy(self) -> str:
        """Fix for a singular covariance, for error messages."""
        if self.shrinkage == 0:
            return f"set stage.{self.given_name}.shrinkage above 0, or leave it to be chosen (null)"
        return f"set stage.{self.given_name}.shrinkage higher or, if no feature varies within classes, use ncm or ridge"


@stage("lda")
@dataclass(frozen=True)
class LDA(GaussianHead):
    """Linear discriminant analysis: w_c = Σ⁻¹μ_c and b_c = log π_c − μ_cᵀΣ⁻¹μ_c/2 for one covariance Σ.

    Σ is the covariance within classes. The mean of all features is subtracted from features and class means μ_c; this
    adds the same value to all scores of a sample. FedCGS (Guan et al., 2025) sends the same sums. GH-OFL (Turazza et
    al., 2026) calls it GH-LDA.
    """

    protectable: ClassVar[bool] = True
    kind: ClassVar[Kind] = "pooled"

    def chosen(self, statistics: Statistics) -> Tree:
        """Return the shrinkage."""
        covariance = statistics.within() / statistics.count.sum()
        return Tree(shrinkage=statistics.count.new_tensor(self._choose(statistics, covariance)))

    def _choose(self, statistics: Statistics, covariance: Tensor) -> float:
        """Return the shrinkage; with noise, that of the penalty λ = s/(1 − s) · tr(Σ)/d · N."""
        if self.shrinkage is not None:
            return self.shrinkage
        samples = float(statistics.count.sum())
        if not statistics.noise:
            return ledoit_wolf(covariance, samples)
        penalty = noise_penalty(statistics) / samples
        return penalty / (penalty + float(covariance.diagonal().mean()))

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Return the linear discriminants."""
        samples, center = float(statistics.count.sum()), statistics.center()
        mean = statistics.mean() - center  # a large term common to all scores would cost precision
        covariance = statistics.within() / samples
        covariance = shrink(covariance, self._choose(statistics, covariance))
        squares = statistics.second_moment().diagonal() / samples
        weight = solve(
            covariance, mean.mT, squares, f"{self.given_name}: the covariance within classes", self.remedy
        ).mT
        bias = self.log_priors(statistics.count) - weight @ center - 0.5 * (weight * mean).sum(1)
        return Tree(weight=weight, bias=bias)
