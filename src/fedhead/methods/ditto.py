"""Ditto: personal models regularized towards the global model (Li et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import AtLeast
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Tree, Weights


@method("ditto")
@dataclass(frozen=True)
class Ditto(Method):
    """FedAvg plus a personal model per client, regularized towards the global model (Li et al., 2021).

    The global model is identical to FedAvg's. FedETF's experiments set λ = 0.001.
    """

    # λ, weight of the distance to the global model; the paper tunes it over 0.1, 1 and 2
    lam: Annotated[float, AtLeast(0)] = 1.0

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Initialize the personal model v_k with the global weights."""
        return Tree(personal=w)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the global model, then the personal model (Algorithm 1)."""
        return (Phase(self.loss), Phase(self.personal_loss, model="personal"))

    def personal_loss(self, v: Weights, batch: Batch, client: Client) -> Tensor:
        """Return h_k(v; wᵗ) = F_k(v) + λ/2 ‖v − wᵗ‖² (the bi-level objective)."""
        fit = client.loss(client.apply(v, batch.x).logits, batch)
        return fit + self.lam / 2 * (v - self.start(client)).sq()

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the global model's update, keep the personal model."""
        return Reply(send=super().finish(w, client).send, keep=Tree(personal=client.state["personal"]))

    def personal_model(self, client: Client) -> Weights:
        """Return v_k."""
        return client.state["personal"]  # type: ignore[no-any-return]  # a tree's entries are untyped

    def tuned_model(self, w: Weights, client: Client) -> Weights:
        """Return v_k, which fine-tuning trains together with the global model."""
        return self.personal_model(client)
