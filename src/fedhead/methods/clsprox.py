"""clsprox: FedProx's proximal term on the classifier alone (CCVR, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedhead.algorithm.base import Method, method
from fedhead.algorithm.client import Client
from fedhead.core.batch import Batch
from fedhead.core.errors import outside
from fedhead.core.tree import Weights


@method("clsprox")
@dataclass(frozen=True)
class ClsProx(Method):
    """FedAvg with a proximal term on the classifier alone (Luo et al., 2021)."""

    mu: float = 0.001  # μ, weight of the proximal term

    def __post_init__(self) -> None:
        """Refuse a term that would push clients away from the global model."""
        if not self.mu >= 0:
            raise outside("method.mu", self.mu, "at least 0")

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """ℓ(w) + μ/2 ‖φ − φ_t‖²."""
        drift = w.part("classifier") - self.start(client).part("classifier")
        return super().loss(w, batch, client) + self.mu / 2 * drift.sq()
