"""FedClassAvg: clients of different architectures that share only their classifier (Jang et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import Above, AtLeast
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.training.losses import supervised_contrastive
from fedhead.core.tree.tree import Tree, Weights


@method("fedclassavg")
@dataclass(frozen=True)
class FedClassAvg(Method):
    """Average the classifiers of clients that may differ otherwise, train features by contrast (Jang et al., 2022).

    The defaults are the paper's text. Its public code is `temperature=100, base_temperature=0.07, normalize=False,
    proximal="mean_squared"`.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass", "binary")  # the contrast is between classes
    rho: Annotated[float, AtLeast(0)] = 0.1  # ρ, weight of the proximal term (Eq. 4)
    temperature: Annotated[float, Above(0)] = 0.07  # τ of the contrastive loss
    # the contrastive loss is scaled by τ / τ_base; None: not at all
    base_temperature: Annotated[float, Above(0)] | None = None
    normalize: bool = True  # whether features have unit length in the contrastive loss
    # ‖w_Ck − w_C‖₂ (Eq. 5), or half the mean square of the weights' difference plus half that of the biases'
    proximal: Literal["distance", "mean_squared"] = "distance"
    ca: bool = True  # classifier averaging; without it nothing is shared
    pr: bool = True  # proximal regularization
    cl: bool = True  # contrastive loss
    share: Literal["classifier", "all"] = "classifier"  # all: whole models of one architecture ("+weight")

    @property
    def shared(self) -> tuple[str, ...]:
        """The classifier, or the whole model of "+weight"."""
        if not self.ca:
            return ()
        return PARTS if self.share == "all" else ("classifier",)

    def init_client(self, w: Weights, task: Task) -> Tree:
        """The client's whole model, and a switch that says whether it was trained already."""
        return Tree(own=w, trained=torch.zeros_like(next(iter(w.values())).sum()))

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """L_CL(F(x'), F(x'')) + L_CE(ŷ, y) + ρ L_R(C, C_k), ŷ being predicted from x' (Eq. 4)."""
        if self.cl:
            first, second = client.apply_to_views(w, batch.x, client.view(batch, 1))
            loss = self.contrast(first.h, second.h, batch) + client.loss(first.logits, batch)
        else:
            loss = client.loss(client.apply(w, batch.x).logits, batch)
        if self.pr:
            loss = loss + self.rho * self.distance(w, self.start(client))
        return loss

    def contrast(self, first: Tensor, second: Tensor, batch: Batch) -> Tensor:
        """The supervised contrastive loss on the extractor's features of two views."""
        one, two = first.flatten(1), second.flatten(1)
        if self.normalize:
            one, two = F.normalize(one, dim=-1), F.normalize(two, dim=-1)
        return supervised_contrastive(one, two, batch.y, batch.weight, self.temperature, self.base_temperature)

    def distance(self, w: Weights, start: Weights) -> Tensor:
        """L_R(C_k, C) = ‖w_Ck − w_C‖₂ (Eq. 5); its gradient where the two are one is 0."""
        drift = w.part("classifier").params - start.part("classifier").params
        if self.proximal == "mean_squared":
            return torch.stack([t.square().mean() for t in drift.values()]).sum() / 2
        return cast(Tensor, torch.linalg.vector_norm(torch.cat([t.flatten() for t in drift.values()])))

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the shared part, keep the whole model: it is what the client uses."""
        return Reply(super().finish(w, client).send, Tree(own=w, trained=torch.ones_like(client.state["trained"])))

    def personal_model(self, client: Client) -> Weights:
        """The local model after training; for a client that never took part, what it would start from."""
        trained, own = client.state["trained"], client.state["own"]
        return self.start(client).map(lambda start, mine: torch.where(trained > 0, mine, start), own)
