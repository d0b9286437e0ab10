"""FedProx: local training tied to the global model (Li et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.core.components.ranges import AtLeast
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Weights


@method("fedprox")
@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg with a proximal term that keeps clients near the global model (Li et al., 2020)."""

    mu: Annotated[float, AtLeast(0)] = 0.01  # μ, weight of the proximal term (Eq. 2)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return F_k(w) + μ/2 ‖w − w_t‖²."""
        return super().loss(w, batch, client) + self.mu / 2 * (w - self.start(client)).sq()
