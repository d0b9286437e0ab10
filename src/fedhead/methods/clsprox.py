"""clsprox: FedProx's proximal term on the classifier alone (CCVR, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedhead.client import Client
from fedhead.errors import outside
from fedhead.exchange import Method, method
from fedhead.tree import Weights
from fedhead.types import Batch


@method("clsprox")
@dataclass(frozen=True)
class ClsProx(Method):
    """FedAvg with a proximal term on the classifier alone (Luo et al., 2021)."""

    mu: float = 0.001  # μ, weight of the proximal term

    def __post_init__(self) -> None:
        """Refuse a term that would push clients away from the global model."""
        if not self.mu >= 0:
            raise outside("method.mu", self.mu, "at least 0")

    def loss(self, w: Weights, batch: Batch, me: Client) -> Tensor:
        """ℓ(w) + μ/2 ‖φ − φ_t‖²."""
        drift = w.part("classifier") - self.start(me).part("classifier")
        return super().loss(w, batch, me) + self.mu / 2 * drift.sq()
