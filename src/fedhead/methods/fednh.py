"""FedNH: a prototype classifier that is moved by averaging, not by gradients (Dai et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method, method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.prototypes import class_sums
from fedhead.algorithm.task import Task
from fedhead.calibration.statistics_check import check_counts
from fedhead.core.components.ranges import AtLeast, AtMost
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, Weights

PROTOTYPES = "classifier.weight"


@method("fednh")
@dataclass(frozen=True)
class FedNH(Method):
    """Spread the class prototypes evenly at first, then let them follow the clients' features (Dai et al., 2023).

    The prototype head belongs to the model: logits s·cos(w_c, z), prototypes fixed in local training, s trained.
    FedETF's experiments average the models by samples.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    head: ClassVar[str | None] = "prototype"
    sums: ClassVar[tuple[str, ...]] = ("prototypes", "counts")
    class_rows: ClassVar[tuple[str, ...]] = ("prototypes", "counts")
    rho: Annotated[float, AtLeast(0), AtMost(1)] = 0.9  # ρ, how much of a prototype stays in a round
    average_over: Literal["clients", "samples"] = "clients"  # who counts alike in the mean model

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the model and μ_k,c, the unit means of unit features, weighed by the class counts."""
        reply = super().finish(w, client)
        means = F.normalize(class_sums(client, w, lambda out: F.normalize(out.z, dim=-1)), dim=1)
        return Reply(
            reply.send.replace(prototypes=means * client.counts.unsqueeze(1), counts=client.counts), reply.keep
        )

    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Refuse prototypes of more samples than the client has, or of none, and means that are longer than 1."""
        check_counts("its prototypes", sent["counts"], samples, sent["prototypes"])
        if bool((sent["prototypes"].norm(dim=1) > sent["counts"] * (1 + 1e-3)).any()):
            raise BadInput("a mean of unit features is longer than 1")

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """w_c ← ρ w_c + (1−ρ) μ_c, both of unit norm, and unit norm again; a class that nobody holds stays."""
        shares = [1.0] * len(replies) if self.average_over == "clients" else None
        model = server["model"].replace(replies.mean("model", shares))
        old, mean = model[PROTOTYPES], F.normalize(cast(Tensor, replies.sum("prototypes")), dim=1)
        new = F.normalize(self.rho * old + (1 - self.rho) * mean, dim=1)
        held = cast(Tensor, replies.sum("counts")) > 0
        return server.replace(model=model.replace({PROTOTYPES: torch.where(held.unsqueeze(1), new, old)}))
