"""FedClassAvg: classifier averaging across different architectures (Jang et al., 2022)."""

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
    """Averaged classifiers on local extractors of any architecture, trained by contrast (Jang et al., 2022).

    The defaults follow the paper. Its public code uses `temperature=100, base_temperature=0.07, normalize=False,
    proximal="mean_squared"`.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass", "binary")  # the contrastive loss needs class labels
    rho: Annotated[float, AtLeast(0)] = 0.1  # ρ, weight of the proximal term (Eq. 4)
    temperature: Annotated[float, Above(0)] = 0.07  # τ of the contrastive loss
    # τ_base of the contrastive loss's scale τ / τ_base; None: no scaling
    base_temperature: Annotated[float, Above(0)] | None = None
    normalize: bool = True  # normalization of the features to unit length in the contrastive loss
    # proximal term: ‖w_Ck − w_C‖₂ (Eq. 5), or half the mean squared difference of the weights plus that of the biases
    proximal: Literal["distance", "mean_squared"] = "distance"
    ca: bool = True  # classifier averaging; False: clients share nothing
    pr: bool = True  # proximal regularization
    cl: bool = True  # contrastive loss
    share: Literal["classifier", "all"] = "classifier"  # shared part; all: models of one architecture ("+weight")

    @property
    def shared(self) -> tuple[str, ...]:
        """The classifier, or the whole model with `share="all"` ("+weight" in the paper)."""
        if not self.ca:
            return ()
        return PARTS if self.share == "all" else ("classifier",)

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Initialize the client's model and a flag for clients that have trained before."""
        return Tree(own=w, trained=torch.zeros_like(next(iter(w.values())).sum()))

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return L_CL(F(x'), F(x'')) + L_CE(ŷ, y) + ρ L_R(C, C_k), with ŷ predicted from x' (Eq. 4)."""
        if self.cl:
            first, second = client.apply_to_views(w, batch.x, client.view(batch, 1))
            loss = self.contrast(first.h, second.h, batch) + client.loss(first.logits, batch)
        else:
            loss = client.loss(client.apply(w, batch.x).logits, batch)
        if self.pr:
            loss = loss + self.rho * self.distance(w, self.start(client))
        return loss

    def contrast(self, first: Tensor, second: Tensor, batch: Batch) -> Tensor:
        """Return the supervised contrastive loss between the features of two views."""
        first, second = first.flatten(1), second.flatten(1)
        if self.normalize:
            first, second = F.normalize(first, dim=-1), F.normalize(second, dim=-1)
        return supervised_contrastive(first, second, batch.y, batch.weight, self.temperature, self.base_temperature)

    def distance(self, w: Weights, start: Weights) -> Tensor:
        """Return L_R(C_k, C) = ‖w_Ck − w_C‖₂ (Eq. 5); its gradient at C_k = C is 0."""
        drift = w.part("classifier").params - start.part("classifier").params
        if self.proximal == "mean_squared":
            return torch.stack([t.square().mean() for t in drift.values()]).sum() / 2
        return cast(Tensor, torch.linalg.vector_norm(torch.cat([t.flatten() for t in drift.values()])))

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the shared part and keep the whole model."""
        return Reply(super().finish(w, client).send, Tree(own=w, trained=torch.ones_like(client.state["trained"])))

    def personal_model(self, client: Client) -> Weights:
        """Return the trained local model, or the starting point of a client that has never trained."""
        trained, local = client.state["trained"], client.state["own"]
        return self.start(client).map(lambda start, model: torch.where(trained > 0, model, start), local)
