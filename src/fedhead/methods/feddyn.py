"""FedDyn: dynamic regularization that aligns local and global optima (Acar et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import Above
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Tree, Weights


@method("feddyn")
@dataclass(frozen=True)
class FedDyn(Method):
    """Dynamic regularization of each client that aligns local and global optima (Acar et al., 2021)."""

    alpha: Annotated[float, Above(0)] = 0.01  # α, weight of the quadratic penalty

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Initialize the model and h = 0."""
        return super().init_server(w, task).replace(h=w.params.zeros())

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Initialize the gradient ∇L_k(θ_k⁰) = 0."""
        return Tree(gradient=w.params.zeros())

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return L_k(θ) − ⟨∇L_k(θ_k), θ⟩ + α/2 ‖θ − θᵗ‖² (Eq. 1)."""
        linear = w.params.dot(client.state["gradient"])
        return super().loss(w, batch, client) - linear + self.alpha / 2 * (w - self.start(client)).sq()

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the model and keep ∇L_k(θ_k) ← ∇L_k(θ_k) − α (θ_k − θᵗ) (Eq. 2)."""
        gradient = client.state["gradient"] - self.alpha * (w.params - self.start(client).params)
        return Reply(send=super().finish(w, client).send, keep=Tree(gradient=gradient))

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Update h ← h − α/m Σ (θ_k − θᵗ) and θ ← mean θ_k − h/α (Algorithm 1) with unweighted means."""
        old, sent = server["model"], replies.mean("model", [1.0] * len(replies))
        mean = old.replace(sent)
        h = server["h"] - (self.alpha * len(replies) / task.clients) * (mean.params - old.params)
        return server.replace(model=mean.replace(mean.params - h / self.alpha), h=h)
