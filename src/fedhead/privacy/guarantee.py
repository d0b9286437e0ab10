"""Guarantee of a protected release, as records state it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy of what one stage, or all rounds, send.

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
    assumptions: tuple[str, ...]
    accountant: str
    secret: bool = True
    mu: float | None = None

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> Guarantee:
        """Read a guarantee from a record.

        Args:
            entries: Entries, as `to_json` returns them.

        Returns:
            The guarantee.
        """
        return cls(**entries | {"assumptions": tuple(entries["assumptions"])})

    def to_json(self) -> dict[str, Any]:
        """Return the entries of a record.

        Returns:
            Entries by name.
        """
        return asdict(self) | {"assumptions": list(self.assumptions)}

    def __str__(self) -> str:
        text = f"{self.release}: ε = {self.epsilon:.3g}, δ = {self.delta:g} per {self.unit} ({self.neighbourhood})"
        return text if self.secret else f"{text}; no guarantee, the noise came from a test's seed"
