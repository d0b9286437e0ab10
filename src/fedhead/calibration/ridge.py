"""Ridge regression from statistics: solutions for all penalties from one eigendecomposition, and their selection.

With the second moment G = Σ zzᵀ and the sums B = Σ zyᵀ of features and one-hot labels, W = (G + λI)⁻¹B. An intercept
is not penalized: G and B are then those of centred features and labels, as in scikit-learn. G = VEVᵀ is computed
once, in float64; the condition number of a solution is at most 1 + max(E)/λ.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhead.calibration.linear_system import ROUNDING
from fedhead.calibration.statistics import Statistics
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree

SINGULAR = 1e-13  # smallest ratio of eigenvalues for a solution with three digits
EXPONENTS = [k / 2 for k in range(-16, 7)]  # candidates of λ: powers of ten times the mean eigenvalue


@dataclass(frozen=True)
class RidgePath:
    """Ridge solutions for every penalty λ.

    Args:
        values: Eigenvalues E of the (centred) second moment, [d].
        vectors: Eigenvectors V, [d, d].
        right: VᵀB, [d, C].
        feature_mean: Mean feature, [d]; zero without an intercept.
        label_mean: Mean label, [C]; zero without an intercept.
        samples: Number of samples N.
        label_squares: Sum of the squares of the (centred) labels.
        rounding: Error of the eigenvalues, from rounding of the sums.
        intercept: Whether to fit an intercept.
    """

    values: Tensor
    vectors: Tensor
    right: Tensor
    feature_mean: Tensor
    label_mean: Tensor
    samples: float
    label_squares: float
    rounding: float
    intercept: bool

    @classmethod
    def of(cls, statistics: Statistics, intercept: bool = True) -> RidgePath:
        """Decompose the second moment of statistics."""
        moment, right = statistics.second_moment(), statistics.sum.mT
        samples = statistics.count.sum()
        mean, share = statistics.center(), statistics.count / samples
        squares, rounding = samples, ROUNDING * float(moment.diagonal().norm())
        if intercept:
            moment = statistics.scatter()
            right = right - torch.outer(mean, statistics.count)
            squares = samples - samples * share.square().sum()
        else:
            mean, share = torch.zeros_like(mean), torch.zeros_like(share)
        values, vectors = torch.linalg.eigh(moment)
        tensors = (values.clamp_min(0), vectors, vectors.mT @ right, mean, share)
        return cls(*tensors, float(samples), float(squares), rounding, intercept)

    @property
    def lowest(self) -> float:
        """Lowest eigenvalue, penalty included, of a system that is not singular."""
        return max(SINGULAR * float(self.values.max()), self.rounding)

    def solve(self, alpha: float) -> Tree:
        """Return the head for a penalty: `weight` [C, d] and `bias` [C].

        Raises:
            BadInput: If the system is numerically singular.
        """
        low, high = float(self.values.min()) + alpha, float(self.values.max()) + alpha
        if low < self.lowest:
            raise BadInput(
                f"ridge: with alpha={alpha:g} the system is singular, its eigenvalues go from {low:.1e} to {high:.1e}: "
                f"give alpha of {max(high * 1e-8, self.lowest):.0e} or more, or leave it to be chosen (null)"
            )
        weight = (self.vectors @ (self.right / (self.values + alpha)[:, None])).mT
        return Tree(weight=weight, bias=self.label_mean - weight @ self.feature_mean)

    def best(self) -> float:
        """Return the candidate penalty with the lowest cross-validation error."""
        scale = float(self.values.mean()) or 1.0
        return min((max(scale * 10**exponent, self.lowest) for exponent in EXPONENTS), key=self.cross_validation)

    def cross_validation(self, alpha: float) -> float:
        """Return the generalized cross-validation error of a penalty (Golub, Heath and Wahba, 1979).

        This is the leave-one-out mean squared error with each sample's leverage replaced by the mean leverage, so it
        needs only sums: N‖Y − Ŷ‖² / (N − tr H)² with tr H = Σ E/(E + λ), plus 1 for an intercept.
        """
        shrunk = self.values + alpha
        explained = (self.right.square().sum(1) * (shrunk + alpha) / shrunk.square()).sum()
        residual = max(self.label_squares - float(explained), 0.0)
        free = self.samples - float((self.values / shrunk).sum()) - self.intercept
        return self.samples * residual / free**2 if free > 0 else float("inf")
