"""Quadratic discriminant analysis, one message per client (GH-OFL: Turazza et al., 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedhead.algorithm.stage import stage
from fedhead.calibration.linear_system import factorize
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import Kind
from fedhead.calibration.symmetric import unpack
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, Weights
from fedhead.models.closed_form_heads import QuadraticHead, quadratic_scores
from fedhead.models.split_model import SplitModel
from fedhead.stages.lda import GaussianHead
from fedhead.stages.statistics_stage import with_classifier


@stage("qda")
@dataclass(frozen=True)
class QDA(GaussianHead):
    """Quadratic discriminant analysis, with a covariance per class (GH-QDA of Turazza et al., 2026).

    The score is log π_c − log|Σ_c|/2 − ‖L_c⁻¹(z − μ_c)‖²/2 with Σ_c = L_cL_cᵀ. Messages and the head have d×d numbers
    per class, whose estimates need many samples; with few samples, lda is better.
    """

    kind: ClassVar[Kind] = "full"

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Return the inverse factors L_c⁻¹, the means and the constants of the classes."""
        statistics.need("full")
        d, mean = statistics.features, statistics.mean()
        factors, halves = [], []
        for c, (number, n) in enumerate(zip(numbers, statistics.count.tolist(), strict=True)):
            if n < 2:
                raise BadInput(
                    f"{self.name}: class {number} has one sample and so no covariance; use lda, or leave it out"
                )
            moment = unpack(statistics.outer[c], d)
            covariance = self.shrunk((moment - torch.outer(statistics.sum[c], mean[c])) / n, n)
            source = f"{self.name}: the covariance of class {number}, with {n:g} samples,"
            factor = factorize(covariance, moment.diagonal() / n, source, self.remedy)
            factors.append(torch.linalg.solve_triangular(factor, torch.eye(d).to(factor), upper=False))
            halves.append(factor.diagonal().log().sum())  # log|Σ_c|/2
        bias = self.log_priors(statistics.count) - torch.stack(halves)
        return Tree(weight=torch.stack(factors), mean=mean, bias=bias)

    def architecture(self, model: SplitModel) -> SplitModel:
        """Return the model with a quadratic classifier."""
        return with_classifier(model, QuadraticHead(model.features, model.classes))

    def logits(self, w: Weights, z: Tensor) -> Tensor:
        """Return the quadratic scores of features."""
        return quadratic_scores(z, w["classifier.weight"], w["classifier.mean"], w["classifier.bias"])
