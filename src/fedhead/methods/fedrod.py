"""FedRoD: a generic head trained on balanced terms, a personal head on top (Chen and Chao, 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Phase
from fedhead.algorithm.task import Task
from fedhead.core.components.ranges import AtLeast
from fedhead.core.training import random
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.training.losses import balanced_softmax, cross_entropy
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights


@method("fedrod")
@dataclass(frozen=True)
class FedRoD(Method):
    """Two heads on one extractor: an averaged generic head and a personal one (Chen and Chao, 2022)."""

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    own_loss: ClassVar[bool] = True
    gamma: Annotated[float, AtLeast(0)] = 1.0  # γ, exponent of the class counts in the balanced softmax
    # treatment of classes without samples at a client: one counts each once, as FedETF's public code; mask removes them
    # from the softmax; see docs/fedetf.md
    absent: Literal["mask", "one"] = "one"

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Initialize a linear personal head with zeros, which adds nothing to the logits."""
        like = next(iter(w.values()))
        size, features = task.classes, task.model.features
        head = {"personal.weight": like.new_zeros(size, features), "personal.bias": like.new_zeros(size)}
        return Tree(own=Weights(head))

    def phases(self, task: Task) -> tuple[Phase, ...]:
        """Train the model and the personal head together."""
        return (Phase(self.loss, trains=(*PARTS, "personal")),)

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return ℓ_BSM(generic) + ℓ(generic + personal logits); the second term trains only the personal head."""
        out = client.apply(w.part(*PARTS), batch.x)
        generic = balanced_softmax(out.logits, batch.y, batch.weight, client.counts, self.gamma, self.absent)
        both = out.logits.detach() + self.personal_logits(w, out.z.detach(), client)
        return generic + cross_entropy(both, batch.y, batch.weight)

    def personal_logits(self, w: Weights, z: Tensor, client: Client) -> Tensor:
        """Return the personal head's logits."""
        return F.linear(z, w["personal.weight"], w["personal.bias"])

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return the sum of both heads' logits."""
        out = client.apply(w.part(*PARTS), x, train=False)
        return out.logits + self.personal_logits(w, out.z, client)


@method("fedrod_hyper")
@dataclass(frozen=True)
class FedRoDHyper(FedRoD):
    """FedRoD with a shared hypernetwork that generates personal heads from class distributions."""

    shared: ClassVar[tuple[str, ...]] = (*PARTS, "personal")
    hidden: Annotated[int, AtLeast(1)] = 32  # width of the hypernetwork's hidden layer

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Initialize the model and the hypernetwork H_ν; its last layer is 0, so personal heads start at 0."""
        like, size = next(iter(w.values())), task.classes * (task.model.features + 1)
        generator = random.generator(random.key(task.seed, "fedrod"))
        first = (torch.rand(self.hidden, task.classes, generator=generator) * 2 - 1) / math.sqrt(task.classes)
        network = {
            "personal.0.weight": first.to(like),
            "personal.0.bias": like.new_zeros(self.hidden),
            "personal.1.weight": like.new_zeros(size, self.hidden),
            "personal.1.bias": like.new_zeros(size),
        }
        return Tree(model=w.replace(network))

    def init_client(self, w: Weights, task: Task) -> Tree:
        """Return an empty state: the hypernetwork generates the personal head."""
        return Tree()

    def personal_logits(self, w: Weights, z: Tensor, client: Client) -> Tensor:
        """Return the logits of φ_k = H_ν(a_k), a linear head generated from the class distribution a_k."""
        share = client.counts / client.samples
        code = F.relu(F.linear(share, w["personal.0.weight"], w["personal.0.bias"]))
        head = F.linear(code, w["personal.1.weight"], w["personal.1.bias"]).reshape(client.task.classes, -1)
        return F.linear(z, head[:, :-1], head[:, -1])

    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the model with its generic head."""
        return cast(Weights, server["model"].part(*PARTS))
