"""FedProto: clients share class prototypes, never models (Tan et al., 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.prototypes import class_sums, prototype_space
from fedhead.algorithm.task import Task
from fedhead.calibration.statistics_check import check_counts
from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.training.losses import mean
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.methods.local_only import LocalOnly

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.models.split_model import SplitModel


@method("fedproto")
@dataclass(frozen=True)
class FedProto(LocalOnly):
    """Features pulled towards shared class prototypes; models stay with the clients (Tan et al., 2022).

    Clients may differ in architecture if their features have the same dimension. FedETF's experiments set
    λ = 0.1 and predict by logits. Their code and the authors' code both use `average_over="clients"`.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    adds_up: ClassVar[bool] = True  # clients send sums and counts
    broadcast: ClassVar[tuple[str, ...]] = ("prototypes",)
    sums: ClassVar[tuple[str, ...]] = ("sums", "counts")
    class_rows: ClassVar[tuple[str, ...]] = ("sums", "counts")
    reveals: ClassVar[Mapping[str, str]] = {
        "sums": "mean feature of each class; of a class of one sample, that sample's feature",
        "counts": "number of samples of each class; with average_over=clients, whether there are any",
    }
    # λ, weight of the distance to the prototypes (Eq. 7); the paper uses 1, and 0.1 for CIFAR
    lam: Annotated[float, AtLeast(0)] = 1.0
    predict_by: Literal["prototypes", "logits"] = "prototypes"  # rule of prediction: nearest prototype or classifier
    average_over: Literal["samples", "clients"] = "samples"  # equal weight per sample or per client (Eq. 6)

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check that all models have the same feature dimension."""
        super().check(models, federation)
        sizes = sorted({model.features for model in models})
        if len(sizes) > 1:
            odd = next(i for i, model in enumerate(models) if model.features != models[0].features)
            raise BadInput(
                f"model {odd}: its features have {models[odd].features} dimensions and model 0's have "
                f"{models[0].features}, but fedproto compares features of one dimension: "
                f"build them with feature_layer={sizes[0]}"
            )

    def init_server(self, w: Weights, task: Task) -> Tree:
        """Initialize the prototypes to zero and mark them as unseen."""
        like = next(iter(w.values()))
        zeros = like.new_zeros(task.classes, task.model.features)
        return Tree(prototypes=Tree(mean=zeros, seen=zeros[:, 0].clone()))

    def loss(self, w: Weights, batch: Batch, client: Client) -> Tensor:
        """Return L_S + λ L_R (Eq. 7); L_R is the mean squared distance of each sample to its class prototype."""
        out, prototypes = client.apply(w, batch.x), client.received["prototypes"]
        feature = prototype_space(client.task.model)(out)
        distance = (feature - prototypes["mean"][batch.y]).square().mean(-1)
        pull = mean(distance * prototypes["seen"][batch.y], batch.weight)
        return client.loss(out.logits, batch) + self.lam * pull

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send C_k^(j) = Σ f_k(x) / |D_k,j| over the samples of class j (Eq. 3) as sums and counts."""
        sums, counts = class_sums(client, w, prototype_space(client.task.model)), client.counts
        if self.average_over == "clients":
            sums, counts = sums / counts.clamp_min(1).unsqueeze(1), (counts > 0).to(counts.dtype)
        return Reply(send=Tree(sums=sums, counts=counts), keep=Tree(own=w))

    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Check that the prototypes' counts match the client's samples."""
        check_counts("its prototypes", sent["counts"], samples, sent["sums"])

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Average the prototypes of each class (Eq. 6); classes without samples keep their prototype."""
        old = server["prototypes"]
        sums, counts = cast(Tensor, replies.sum("sums")), cast(Tensor, replies.sum("counts"))
        present = counts > 0
        mean = torch.where(present.unsqueeze(1), sums / counts.clamp_min(1).unsqueeze(1), old["mean"])
        return server.replace(prototypes=Tree(mean=mean, seen=torch.maximum(old["seen"], present.to(mean.dtype))))

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return negative distances to the prototypes (Eq. 8), or the logits."""
        out, prototypes = client.apply(w, x, train=False), client.received["prototypes"]
        if self.predict_by == "logits":
            return out.logits
        scores = -torch.cdist(prototype_space(client.task.model)(out), prototypes["mean"])
        return scores.masked_fill(prototypes["seen"] == 0, -torch.inf)
