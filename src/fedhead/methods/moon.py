"""MOON: model-contrastive federated learning (Li, He and Song, 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import Above, AtLeast
from fedhead.core.training.batch import Batch
from fedhead.core.training.losses import model_contrastive
from fedhead.core.tree.tree import Tree, Weights


@method("moon")
@dataclass(frozen=True)
class Moon(Method):
    """Contrastive loss: features near the global model's and far from the last local model's (Li et al., 2021)."""

    mu: Annotated[float, AtLeast(0)] = 1.0  # μ, weight of the contrastive term
    temperature: Annotated[float, Above(0)] = 0.5  # τ, temperature of the contrastive term

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Add a placeholder for the previous model and a flag that disables the contrast in the first round."""
        return super().init_client(w, task).replace(previous=w, seen=torch.zeros_like(next(iter(w.values())).sum()))

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return ℓ_sup + μ ℓ_con (Eq. 3 and 4); ℓ_con compares z, the projected features."""
        out = client.apply(w, batch.x)
        with torch.no_grad():
            towards = client.apply(self.start(client), batch.x, train=False).z
            away = client.apply(client.state["previous"], batch.x, train=False).z
        contrast = model_contrastive(out.z, towards, away, batch.weight, self.temperature)
        seen: Tensor = client.state["seen"]
        return client.loss(out.logits, batch) + self.mu * seen * contrast

    def finish(self, w: Weights, client: Client) -> Reply:
        """Keep the local model as the previous model of the next round."""
        reply = super().finish(w, client)
        return Reply(reply.send, reply.keep.replace(previous=w, seen=torch.ones_like(client.state["seen"])))
