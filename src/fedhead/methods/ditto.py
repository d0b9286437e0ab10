"""Ditto: a personal model beside the global one, held near it (Li et al., 2021)."""

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
    """Each client also trains its own model, pulled towards the global one (Li et al., 2021).

    The global model is FedAvg's, batch for batch. FedETF's experiments set λ = 0.001.
    """

    # λ, the pull towards the global model; the paper tunes it over 0.1, 1 and 2
    lam: Annotated[float, AtLeast(0)] = 1.0

    def init_client(self, w: Weights, task: Task) -> Tree:
        """The personal model v_k starts where the global one does."""
        return Tree(personal=w)

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """First the global model's local update, then the personal model's (Algorithm 1)."""
        return (Phase(self.loss), Phase(self.personal_loss, on="personal"))

    def personal_loss(self, v: Weights, batch: Batch, client: Client) -> Tensor:
        """h_k(v; wᵗ) = F_k(v) + λ/2 ‖v − wᵗ‖² (the bi-level objective)."""
        fit = client.loss(client.apply(v, batch.x).logits, batch)
        return fit + self.lam / 2 * (v - self.start(client)).sq()

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the global model's update, keep the personal model."""
        return Reply(send=super().finish(w, client).send, keep=Tree(personal=client.state["personal"]))

    def personal_model(self, client: Client) -> Weights:
        """v_k."""
        return client.state["personal"]  # type: ignore[no-any-return]  # a tree's entries are untyped

    def tuned_model(self, w: Weights, client: Client) -> Weights:
        """v_k, which one more round has trained too."""
        return self.personal_model(client)
