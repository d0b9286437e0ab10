"""Differential privacy of class statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedhead.core.components.ranges import Above
from fedhead.privacy.base import Protection, protection


@protection("dp")
@dataclass(frozen=True)
class DP(Protection):
    """Gaussian noise on the class statistics that stages send, calibrated exactly to (ε, δ) per sample."""

    covers: ClassVar[Literal["stages"]] = "stages"
    clip: Annotated[float, Above(0)] | None = None  # maximum norm of features; null: scale all features to unit norm
