"""CCVR: classifier calibration with virtual representations (Luo et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.stage import Stage, stage
from fedhead.algorithm.task import Task
from fedhead.calibration import statistics as class_statistics
from fedhead.calibration import statistics_check
from fedhead.calibration.head import check_head
from fedhead.calibration.retrain import retrain
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.virtual_features import Tukey, tukey, virtual_counts, virtual_features
from fedhead.core import random
from fedhead.core.batch import PARTS, Batch, Output
from fedhead.core.errors import BadInput
from fedhead.core.inputs import Inputs
from fedhead.core.optimizers import SGD
from fedhead.core.ranges import Above, AtLeast, AtMost, Below
from fedhead.core.tree import Tree, Weights, mean
from fedhead.models.split_model import SplitModel, classify

if TYPE_CHECKING:
    from fedhead.data.federation import Federation


@stage("ccvr")
@dataclass(frozen=True)
class CCVR(Stage):
    """Train the classifier anew on features drawn from the clients' class statistics (Luo et al., 2021, Algorithm 1).

    Where clients differ in architecture, each architecture has its own statistics and calibrated classifier.
    The paper's sizes are 2000 features per class and 10 epochs for Dirichlet(0.1) and below, 100 and 30 for (0.5).
    """

    samples: Annotated[int, AtLeast(1)] = 2000  # M_c, virtual features per class
    proportional: bool = False  # M_c in proportion to N_c/|D|, `samples` per class on average
    epochs: Annotated[int, AtLeast(0)] = 10  # of training the classifier on them
    lr: Annotated[float, Above(0)] = 1e-3  # learning rate of SGD
    momentum: Annotated[float, AtLeast(0), Below(1)] = 0.9  # of SGD
    weight_decay: Annotated[float, AtLeast(0)] = 1e-5  # L2 penalty of SGD
    batch_size: Annotated[int, AtLeast(1)] = 64  # virtual features per step
    # The paper applies ReLU and Tukey's transformation but not where: to the real features before their statistics
    # and in testing (real), to virtual features and in testing (both), to virtual features alone, or not at all.
    tukey: Tukey = "none"
    power: Annotated[float, Above(0), AtMost(1)] = 0.5  # λ of Tukey's transformation
    covariance: Literal["full", "diagonal", "low-rank"] = "full"  # what clients send of Σ_c
    rank: Annotated[int, AtLeast(0)] = 16  # of a low-rank covariance; its diagonal stays exact
    free: bool = False  # calibrate also a head that is fixed or not linear in the features

    broadcast: ClassVar[tuple[str, ...]] = ("model", "calibrated")
    sums: ClassVar[tuple[str, ...]] = ("statistics",)
    class_rows: ClassVar[tuple[str, ...]] = ("statistics",)

    def after(self, method: Method) -> Self:
        """Refuse methods whose clients have no features in common."""
        if not set(method.shared) & {"extractor", "classifier"}:
            raise BadInput(
                f"ccvr can't follow {method.name}: its clients share neither extractor nor classifier, "
                f"so the features of one mean nothing to another"
            )
        bound = super().after(method)
        if self.covariance == "low-rank":  # factors of covariances don't add up
            object.__setattr__(bound, "sums", ())
        return bound

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Refuse heads that can't be calibrated."""
        super().check(models, federation)
        for model in models:
            check_head(model, self.free, "ccvr")
            if self.covariance == "low-rank" and self.rank > model.features:
                raise BadInput(f"stage.ccvr.rank: {self.rank} is more than the features' {model.features} dimensions")

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """The model that the method would begin its next round with, without what the method keeps beside it."""
        return super().start(client).part(*PARTS)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the class statistics of the features (Eq. 2), as sums."""

        def sums(batch: Batch) -> Tree:
            z = client.apply(w, batch.x, train=False).z
            z = tukey(z, self.power) if self.tukey == "real" else z
            found = class_statistics.class_sums(
                z, batch.y, batch.weight, client.task.classes, self.covariance == "diagonal"
            )
            return Tree(zip(("count", "sum", "outer"), found, strict=True))

        total = client.total(sums)
        if self.covariance == "low-rank":
            total = class_statistics.low_rank_sums(total["count"], total["sum"], total["outer"], self.rank)
        number = torch.tensor(architecture(client.task.model), device=client.counts.device)
        send = Tree(statistics=total, architecture=number)
        if "classifier" not in self.method.shared:  # the server has no head to start from but the clients'
            send = send.replace(head=w.part("classifier"))
        return Reply(send=send, keep=client.state)

    # -- server -----------------------------------------------------------------------------------
    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Refuse statistics that no features of so many samples have."""
        found = class_statistics.from_tree(sent["statistics"])
        statistics_check.check_client(found, "its statistics", samples, exact=self.covariance != "low-rank")
        if int(sent["architecture"]) != architecture(task.model):
            raise BadInput("its statistics are those of another architecture")

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Merge the statistics (Eq. 3 and 4), draw virtual features, train the head on them."""
        groups: dict[int, list[int]] = {}
        for place, sent in enumerate(replies.sent):
            groups.setdefault(int(sent["architecture"]), []).append(place)
        calibrated = Tree()
        for group, places in groups.items():
            merged = self.merge([(replies.clients[i], replies.sent[i]["statistics"]) for i in places])
            if "classifier" in self.method.shared:
                head = server["model"].part("classifier")
            else:
                head = mean([replies.sent[i]["head"] for i in places], [replies.samples[i] for i in places])
            calibrated[str(group)] = head.replace(self.calibrate(task.model, head, merged, task.seed))
        return server.replace(calibrated=calibrated)

    def merge(self, sent: Sequence[tuple[int, Tree]]) -> Statistics:
        """The statistics of all clients together; refuses those that no features could have, by client."""
        sources = [f"statistics of client {k}" for k, _ in sent]
        return statistics_check.merge_checked(sources, lambda i: class_statistics.from_tree(sent[i][1]))

    def calibrate(self, model: SplitModel, head: Tree, statistics: Statistics, seed: int = 0) -> Tree:
        """The head after training on virtual features, as the classifier's entries that were trained."""
        counts = virtual_counts(statistics.count, self.samples, self.proportional)
        params = cast(Weights, head).params
        transformed = self.tukey in ("both", "virtual")
        z, y = virtual_features(
            statistics,
            counts,
            random.key(seed, "ccvr", "draw"),
            next(iter(params.values())).dtype,
            lambda z: tukey(z, self.power) if transformed else z,
        )
        optimizer = SGD(self.lr, self.momentum, self.weight_decay)
        return retrain(model, params, z, y, optimizer, self.epochs, self.batch_size, random.key(seed, "ccvr", "order"))

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """The trained extractor under the calibrated head, where clients share one extractor."""
        extractor = [part for part in PARTS if part != "classifier"]
        if "calibrated" not in server or not set(extractor) <= set(self.method.shared):
            return None
        model = server["model"].part(*PARTS)
        return cast(Weights, model.replace(server["calibrated"][str(architecture(task.model))]))

    def personal_model(self, client: Client) -> Weights:
        """The client's extractor under the calibrated head."""
        return self.start(client).replace(client.received["calibrated"][str(architecture(client.task.model))])

    def scores(self, out: Output, w: Weights, task: Task) -> Tensor:
        """The head's scores, of transformed features where testing transforms them."""
        if self.tukey not in ("real", "both"):
            return out.logits
        return classify(task.model, w, tukey(out.z, self.power))

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """As the global model does."""
        return self.scores(client.apply(w, x, train=False), w, client.task)


def architecture(model: SplitModel) -> int:
    """A number for a model's architecture, the same wherever its tensors have the same names and shapes."""
    return random.key(*(f"{name} {tuple(p.shape)}" for name, p in model.named_parameters()))
