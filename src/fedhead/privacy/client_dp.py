"""Differential privacy of clients in the rounds: DP-FedAvg."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from fedhead.core.components.ranges import Above, Below
from fedhead.privacy.base import Protection, protection


@protection("client_dp")
@dataclass(frozen=True)
class ClientDP(Protection):
    """Clipped updates and Gaussian noise on their mean, added once by the server (McMahan et al., 2018).

    All clients have equal weights. The clipping norm is fixed, or it follows a quantile of the updates' norms
    (Andrew et al., 2021).
    """

    covers: ClassVar[Literal["rounds"]] = "rounds"
    clip: Annotated[float, Above(0)] = 1.0  # C, maximum L2 norm of an update; with quantile: that of the first round
    noise_multiplier: Annotated[float, Above(0)] | None = None  # z, noise over C; null: spend ε in the planned rounds
    quantile: Annotated[float, Above(0), Below(1)] | None = None  # γ, share of updates below C; null: C is fixed
