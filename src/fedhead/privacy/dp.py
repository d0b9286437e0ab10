"""Differential privacy of class statistics: counts, sums and second moments of bounded features.

Sensitivity, for one sample more or less. A sample of class c with features z, ‖z‖ ≤ B, adds

- 1 to the count of its class: L2 norm 1;
- z to the sum of its class: norm ≤ B;
- zzᵀ to the second moment of its class, or of all classes: Frobenius norm ‖z‖² ≤ B²; of its diagonal, ‖z∘z‖ ≤ ‖z‖².

Scaled by √w₀, √w₁/B and √w₂/B² with w₀ + w₁ + w₂ = 1, the three together change by at most 1, so that noise of
deviation 1/μ on all of them is one μ-GDP release (`gaussian`). The Frobenius norm counts an entry off the diagonal
twice; its single stored copy is therefore scaled by √2 more, and has noise of 1/√2 of the diagonal's deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from fedhead.core.components.ranges import Above, AtLeast
from fedhead.privacy import gaussian
from fedhead.privacy.base import Protection, protection
from fedhead.privacy.guarantee import Guarantee

CENTER_SHARE = 0.1  # share of μ² that a private center costs
MOMENT_SHARE = 0.5  # w₂, where second moments are sent


@protection("dp")
@dataclass(frozen=True)
class DP(Protection):
    """Gaussian noise on the class statistics that stages send, calibrated exactly to (ε, δ) per sample.

    Features are scaled to unit norm, or clipped to a norm, before they are added up and before they are classified.
    """

    covers: ClassVar[Literal["stages"]] = "stages"
    clip: Annotated[float, Above(0)] | None = None  # maximum norm of features; null: scale all features to unit norm
    # mean that is subtracted from bounded features, which are bounded again: less of the norm is common to all samples.
    # private: the clients' mean, with noise, by one more exchange and a tenth of the budget; public: of public samples
    center: Literal["none", "private", "public"] = "none"
    directions: Annotated[int, AtLeast(1)] | None = None  # random directions that features are projected on; null: none

    @property
    def bound(self) -> float:
        """Bound B of the features' norm."""
        return 1.0 if self.clip is None else self.clip


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of the noise on counts, on sums, and on diagonals of second moments."""

    count: float
    sum: float
    moment: float

    def scaled(self, factor: float) -> Deviations:
        """Return the deviations times a factor."""
        return Deviations(factor * self.count, factor * self.sum, factor * self.moment)


@dataclass(frozen=True)
class Release:
    """Release of one stage, with its share of the run's budget.

    Args:
        protection: Protection of the run's stages.
        releases: Number of releases that share its budget equally, in μ².
        part: Share of this release that one of its exchanges has, in μ².
    """

    protection: DP
    releases: int
    part: float = 1.0

    @property
    def mu(self) -> float:
        """μ of this release with all its exchanges; all releases of the run compose to (ε, δ)."""
        return gaussian.mu_of(self.protection.epsilon, self.protection.delta) / math.sqrt(self.releases)

    @property
    def exchange_mu(self) -> float:
        """μ of the exchange that has this `part`."""
        return self.mu * math.sqrt(self.part)

    def of_center(self) -> Release:
        """Return the part of the exchange that computes the center."""
        return replace(self, part=CENTER_SHARE)

    def without_center(self) -> Release:
        """Return the part of the exchange that follows the center's; a public center costs nothing."""
        return replace(self, part=1 - CENTER_SHARE) if self.protection.center == "private" else self

    def deviations(self, features: int, moments: bool) -> Deviations:
        """Return the deviations of the noise on a total.

        Counts get the share w₀ : w₁ = 1 : √d, with which the error of a class mean, ‖μ_c‖²/w₀ + d·B²/w₁, is lowest.

        Args:
            features: Dimension of the features d.
            moments: Whether second moments are sent.
        """
        bound, mu, root = self.protection.bound, self.exchange_mu, math.sqrt(features)
        means = 1 - MOMENT_SHARE if moments else 1.0
        w0, w1, w2 = means / (1 + root), means * root / (1 + root), 1 - means
        moment = bound**2 / (mu * math.sqrt(w2)) if moments else 0.0
        return Deviations(1 / (mu * math.sqrt(w0)), bound / (mu * math.sqrt(w1)), moment)

    def guarantee(self, stage: str, clients: int) -> Guarantee:
        """Return the guarantee of the release.

        Args:
            stage: Name of the stage.
            clients: Minimum number of clients in a total, the least that the server sees; 1: single replies.
        """
        protection = self.protection
        who = (
            "each client adds all of the noise"
            if clients == 1
            else (f"the server sees only totals of at least {clients} clients, which all add their share of the noise")
        )
        return Guarantee(
            release=f"stage {stage}",
            epsilon=gaussian.epsilon_of(protection.delta, self.mu),
            delta=protection.delta,
            unit="sample",
            neighbourhood="add or remove one",
            mechanism=f"Gaussian noise of deviation {1 / self.mu:.4g} on class statistics of sensitivity 1",
            assumptions=[
                who,
                "rounds and preprocessing (normalize, missing) that read these samples have a guarantee of their own",
                "the numbers of samples of the clients are public",
                "tests are not protected",
            ],
            accountant="analytic Gaussian mechanism, Gaussian differential privacy",
            secret=protection.test_seed is None,
            mu=self.mu,
        )
