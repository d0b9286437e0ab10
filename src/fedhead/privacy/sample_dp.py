"""Differential privacy of samples in the rounds: DP-SGD at each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedhead.core.components.ranges import Above
from fedhead.privacy.base import Protection, protection


@protection("sample_dp")
@dataclass(frozen=True)
class SampleDP(Protection):
    """DP-SGD at each client: clipped gradients of single samples, and noise on their sum (Abadi et al., 2016).

    Each step draws every sample with the same probability, on average `batch_size` samples (Poisson sampling).
    """

    covers: ClassVar[Literal["rounds"]] = "rounds"
    clip: Annotated[float, Above(0)] = 1.0  # C, maximum L2 norm of a sample's gradient
    noise_multiplier: Annotated[float, Above(0)] | None = None  # z, noise over C; null: spend ε in the planned rounds
