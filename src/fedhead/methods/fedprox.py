"""FedProx: local training tied to the global model (Li et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedhead.client import Client
from fedhead.errors import outside
from fedhead.exchange import Method, method
from fedhead.tree import Weights
from fedhead.types import Batch


@method("fedprox")
@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term that keeps clients near the global model (Li et al., 2020)."""

    mu: float = 0.01  # μ, weight of the proximal term (Eq. 2)

    def __post_init__(self) -> None:
        """Refuse a term that would push clients away from the global model."""
        if not self.mu >= 0:
            raise outside("method.mu", self.mu, "at least 0")

    def loss(self, w: Weights, batch: Batch, me: Client) -> Tensor:
        """F_k(w) + μ/2 ‖w − w_t‖²."""
        return super().loss(w, batch, me) + self.mu / 2 * (w - self.start(me)).sq()
