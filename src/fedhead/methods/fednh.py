"""FedNH: a prototype classifier that is moved by averaging, not by gradients (Dai et al., 2023)."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Evenly spread initial class prototypes that move with the clients' features (Dai et al., 2023).

    The prototype head belongs to the model: logits are s·cos(w_c, z); local training updates s but not the prototypes.
    FedETF's experiments use `average_over="samples"`.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    head: ClassVar[str | None] = "prototype"
    sums: ClassVar[tuple[str, ...]] = ("prototypes", "counts")
    class_rows: ClassVar[tuple[str, ...]] = ("prototypes", "counts")
    reveals: ClassVar[Mapping[str, str]] = {
        "prototypes": "direction of each class's mean feature; of a class of one sample, that of its feature",
        "counts": "number of samples of each class",
    }
    rho: Annotated[float, AtLeast(0), AtMost(1)] = 0.9  # ρ, momentum of the prototypes from round to round
    average_over: Literal["clients", "samples"] = "clients"  # equal weight per client or per sample in the mean model

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the model and the prototypes μ_k,c (normalized means of normalized features) times the class counts."""
        reply = super().finish(w, client)
        means = F.normalize(class_sums(client, w, lambda out: F.normalize(out.z, dim=-1)), dim=1)
        return Reply(
            reply.send.replace(prototypes=means * client.counts.unsqueeze(1), counts=client.counts), reply.keep
        )

    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Check that counts match the client's samples and that no mean of unit features is longer than 1."""
        check_counts("its prototypes", sent["counts"], samples, sent["prototypes"])
        if bool((sent["prototypes"].norm(dim=1) > sent["counts"] * (1 + 1e-3)).any()):
            raise BadInput("a mean of unit features is longer than 1")

    @property
    def adds_up(self) -> bool:
        """True if models are averaged over samples; prototypes are sums."""
        return self.average_over != "clients"

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Update w_c ← ρ w_c + (1−ρ) μ_c and normalize it; classes without samples keep their prototype."""
        shares = [1.0] * len(replies) if self.average_over == "clients" else None
        model = server["model"].replace(replies.mean("model", shares))
        old, mean = model[PROTOTYPES], F.normalize(cast(Tensor, replies.sum("prototypes")), dim=1)
        new = F.normalize(self.rho * old + (1 - self.rho) * mean, dim=1)
        present = cast(Tensor, replies.sum("counts")) > 0
        return server.replace(model=model.replace({PROTOTYPES: torch.where(present.unsqueeze(1), new, old)}))
