"""clsprox: FedProx's proximal term on the classifier alone (CCVR, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.core.components.ranges import AtLeast
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Weights


@method("clsprox")
@dataclass(frozen=True)
class ClsProx(Method):
    """FedAvg with a proximal term on the classifier alone (Luo et al., 2021)."""

    mu: Annotated[float, AtLeast(0)] = 0.001  # μ, weight of the proximal term

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return ℓ(w) + μ/2 ‖φ − φ_t‖², where φ is the classifier."""
        drift = w.part("classifier") - self.start(client).part("classifier")
        return super().loss(w, batch, client) + self.mu / 2 * drift.sq()
