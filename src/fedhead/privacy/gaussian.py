"""Gaussian mechanism in closed form: (ε, δ) and Gaussian differential privacy.

A release f(D) + N(0, σ²I), where f changes by at most Δ in L2 norm between neighbouring data sets, is μ-Gaussian
differentially private (μ-GDP) with μ = Δ/σ (Dong, Roth and Su, 2022, Theorem 1). That is equivalent to (ε, δ(ε)) for
all ε at once, with the δ of Balle and Wang (2018, Theorem 8). Both are exact, so no smaller noise satisfies (ε, δ).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from scipy.optimize import brentq
from scipy.special import log_ndtr


def delta_of(epsilon: float, mu: float) -> float:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) of μ-GDP.

    >>> f"{delta_of(1.0, 1.0):.4f}"
    '0.1269'
    """
    if mu <= 0:
        return 0.0
    # in logarithms: both terms may be far below the smallest number
    first, second = float(log_ndtr(mu / 2 - epsilon / mu)), epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    if epsilon > 1e6:  # too large for the digits of the second term, without which δ is an upper bound
        return math.exp(first)
    return 0.0 if second >= first else -math.exp(first) * math.expm1(second - first)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ such that μ-GDP implies (ε, δ)-differential privacy."""
    # δ(ε) is below μ/2 for every ε, and almost 1 at the upper end
    lowest, highest = math.log(delta), math.log(math.sqrt(2 * epsilon) + 50)
    return math.exp(brentq(lambda x: delta_of(epsilon, math.exp(x)) - delta, lowest, highest, xtol=1e-14, rtol=1e-14))


def epsilon_of(delta: float, mu: float) -> float:
    """Return the smallest ε such that μ-GDP implies (ε, δ)-differential privacy.

    >>> f"{epsilon_of(1e-5, mu_of(2.0, 1e-5)):.6f}"
    '2.000000'
    """
    if delta_of(0.0, mu) <= delta:
        return 0.0
    highest = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1  # Gaussian tail bound of the privacy loss
    return float(brentq(lambda epsilon: delta_of(epsilon, mu) - delta, 0.0, highest, xtol=1e-12, rtol=1e-14))


def compose(mus: Iterable[float]) -> float:
    """Return the μ of several releases about the same data: √Σμ² (Dong, Roth and Su, 2022, Corollary 2)."""
    return math.hypot(*mus)
