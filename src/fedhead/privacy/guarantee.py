"""Guarantee of a protected release, as records state it."""

from __future__ import annotations

from dataclasses import dataclass

from fedhead.privacy import gaussian


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of what one stage, or all rounds, send. Records hold its fields.

    Args:
        release: What is protected, such as "stage ridge".
        epsilon: ε of this release alone.
        delta: δ, the same for all releases of a run.
        unit: What one record of the data is: "sample" or "client".
        neighbourhood: Change between neighbouring data sets, such as "add or remove one".
        mechanism: Mechanism and its noise, in words.
        assumptions: What has to hold, in words.
        accountant: How ε was computed.
        secret: Whether the noise came from the operating system's entropy; False: a test's, which protects nothing.
        mu: μ of Gaussian differential privacy, if the release has one: totals are then exact.
    """

    release: str
    epsilon: float
    delta: float
    unit: str
    neighbourhood: str
    mechanism: str
    assumptions: list[str]
    accountant: str
    secret: bool = True
    mu: float | None = None

    def __str__(self) -> str:
        text = f"{self.release}: ε = {self.epsilon:.3g}, δ = {self.delta:g} per {self.unit} ({self.neighbourhood})"
        return text if self.secret else f"{text}; no guarantee, the noise came from a test's seed"


def total_epsilon(guarantees: list[Guarantee]) -> str | None:
    """Format the total ε of several releases about the same samples or clients; None if it is not known."""
    mus = [each.mu for each in guarantees if each.mu is not None]
    if len(mus) < max(2, len(guarantees)) or len({each.unit for each in guarantees}) > 1:
        return None
    return f"together: ε = {gaussian.epsilon_of(guarantees[0].delta, gaussian.compose(mus)):.3g}"
