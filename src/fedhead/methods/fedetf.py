"""FedETF: one fixed simplex-ETF classifier for all clients (Li et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import AtLeast
from fedhead.core.training.batch import Batch
from fedhead.core.training.losses import balanced_softmax
from fedhead.core.tree.tree import Weights


@method("fedetf")
@dataclass(frozen=True)
class FedETF(Method):
    """Feature training towards one fixed simplex ETF, shared by all clients (Li et al., 2023).

    The ETF head (Eq. 3-5) belongs to the model: logits are β·v_cᵀμ with a fixed frame V, a projection layer and unit
    features μ; w = {u, p, β} is trained and averaged. The modules of Table 4 are switched off by `balanced_loss`,
    `learnable_temperature` and the model's parameter `projected`.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    head: ClassVar[str | None] = "etf"
    gamma: Annotated[float, AtLeast(0)] = 1.0  # γ, exponent of the class counts (Eq. 6)
    # treatment of classes without samples at a client: one sets n = 1 (public code), mask removes them from the softmax
    # (n^γ = 0, Eq. 6); see docs/fedetf.md
    absent: Literal["mask", "one"] = "one"
    balanced_loss: bool = True  # balanced softmax loss weighted by class counts (Eq. 6); False: plain cross entropy
    learnable_temperature: bool = True  # training of the head's temperature β; False: fixed β

    @property
    def own_loss(self) -> bool:
        """True with the balanced loss (Eq. 6), which replaces the run's loss."""
        return self.balanced_loss

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train u, p and β (Eq. 7); the head keeps V fixed."""
        temperature = ("classifier",) if self.learnable_temperature else ()
        return (Phase(self.loss, trains=("extractor", "projection", *temperature)),)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return −log n_y^γ exp(β v_yᵀμ) / Σ_c n_c^γ exp(β v_cᵀμ), averaged over samples (Eq. 6 and 8)."""
        logits = client.apply(w, batch.x).logits
        if not self.balanced_loss:
            return client.loss(logits, batch)
        return balanced_softmax(logits, batch.y, batch.weight, client.counts, self.gamma, self.absent)
