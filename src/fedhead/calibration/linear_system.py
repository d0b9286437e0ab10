"""Symmetric linear systems of closed-form heads, solved in float64; singular ones raise an error.

Matrices are scaled to a unit diagonal first, so the test for singularity does not depend on the features' units. Then
the pivots of a Cholesky decomposition are √(1 − R²), where R² is the coefficient of determination of a feature
predicted linearly by those before it. A system with 1 − R² below `SINGULAR` for some feature is refused: its solution
would have fewer than about six digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput

SINGULAR = 1e-10
ROUNDING = 1e-15  # error of sums of squares in float64, relative to them


def factorize(matrix: Tensor, squares: Tensor, name: str, fix: str) -> Tensor:
    """Return the lower Cholesky factor L of a symmetric matrix A = LLᵀ.

    Args:
        matrix: A, [d, d].
        squares: Mean squares of the features in the units of A's diagonal, [d]; diagonal entries below `ROUNDING` times
            these are rounding errors.
        name: Name of the matrix, for error messages.
        fix: Fix for a singular matrix, for error messages.

    Raises:
        BadInput: If the matrix is singular.
    """
    diagonal = matrix.diagonal()
    scale = diagonal.clamp_min(0).sqrt()
    for feature in torch.nonzero(diagonal <= ROUNDING * squares).flatten().tolist():
        raise BadInput(f"{name} is singular: feature {feature} is constant; {fix}")
    factor, failed = torch.linalg.cholesky_ex(matrix / scale[:, None] / scale)
    pivots = factor.diagonal().square()
    if int(failed) or float(pivots.min()) < SINGULAR:
        feature = int(failed) - 1 if int(failed) else int(pivots.argmin())
        raise BadInput(f"{name} is singular: feature {feature} is a linear combination of the others; {fix}")
    lower: Tensor = scale[:, None] * factor
    return lower


def solve(matrix: Tensor, right: Tensor, squares: Tensor, name: str, fix: str) -> Tensor:
    """Return A⁻¹B for a symmetric positive definite A; see `factorize`."""
    return torch.cholesky_solve(right, factorize(matrix, squares, name, fix))


def shrink(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return (1 − s)Σ + s·tr(Σ)/d·I, like scikit-learn's `shrunk_covariance`."""
    d = covariance.shape[-1]
    target = covariance.diagonal().mean() * torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    return (1 - shrinkage) * covariance + shrinkage * target


def ledoit_wolf(covariance: Tensor, samples: float) -> float:
    """Return the shrinkage of Ledoit and Wolf, computed from the covariance (Chen et al., 2010, Eq. 17 and 19).

    The shrinkage of Ledoit and Wolf (2004) needs fourth moments of the samples. This is its conditional expectation,
    for Gaussian features, given the covariance; it needs only the covariance and the number of samples.

    Args:
        covariance: Maximum-likelihood estimate, [d, d].
        samples: Number of samples n.
    """
    d, n = covariance.shape[-1], samples
    trace, square = float(covariance.diagonal().sum()), float(covariance.square().sum())
    spread = square - trace**2 / d
    if spread <= 0 or n < 1:  # a multiple of the identity already
        return 1.0
    return min(1.0, ((n - 2) / n * square + trace**2) / ((n + 2) * spread))
