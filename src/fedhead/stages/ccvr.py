"""CCVR: classifier calibration with virtual representations (Luo et al., 2021)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, cast

from torch import Tensor, nn

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.stage import stage
from fedhead.algorithm.task import Task
from fedhead.calibration.head import check_head
from fedhead.calibration.low_rank import low_rank_sums
from fedhead.calibration.retrain import retrain
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import Kind
from fedhead.calibration.virtual_features import Tukey, tukey, virtual_counts, virtual_features
from fedhead.core.components.ranges import Above, AtLeast, AtMost, Below
from fedhead.core.system.errors import BadInput, require
from fedhead.core.training import random
from fedhead.core.training.batch import Output
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_rows import tree_mean
from fedhead.models.closed_form_heads import bounded
from fedhead.models.split_model import SplitModel, classify
from fedhead.privacy.base import Protection
from fedhead.stages.statistics_stage import StatisticsStage, with_classifier

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation


@stage("ccvr")
@dataclass(frozen=True)
class CCVR(StatisticsStage):
    """Classifier retraining on features drawn from the clients' class statistics (Luo et al., 2021, Algorithm 1).

    With several architectures, each has its own statistics and calibrated classifier.
    The paper uses 2000 features per class and 10 epochs for Dirichlet(0.1) and below, 100 and 30 for Dirichlet(0.5).
    """

    samples: Annotated[int, AtLeast(1)] = 2000  # M_c, number of virtual features per class
    proportional: bool = False  # M_c proportional to N_c/|D|, with `samples` per class on average
    epochs: Annotated[int, AtLeast(0)] = 10  # epochs of training the classifier
    lr: Annotated[float, Above(0)] = 1e-3  # learning rate of SGD
    momentum: Annotated[float, AtLeast(0), Below(1)] = 0.9  # momentum of SGD
    weight_decay: Annotated[float, AtLeast(0)] = 1e-5  # L2 penalty of SGD
    batch_size: Annotated[int, AtLeast(1)] = 64  # virtual features per step
    # features to which ReLU and Tukey's transformation are applied; the paper does not say which. real: real features,
    # before their statistics are computed and in testing; virtual: virtual features, in training; both: virtual
    # features in training and real features in testing; none: no features. No choice was measured to be better than
    # the default (docs/ccvr.md). The reproduced paper tables use real.
    tukey: Tukey = "none"
    power: Annotated[float, Above(0), AtMost(1)] = 0.5  # λ of Tukey's transformation
    covariance: Literal["full", "diagonal", "low-rank"] = "full"  # form of the covariances Σ_c that clients send
    rank: Annotated[int, AtLeast(0)] = 16  # rank of a low-rank covariance; its diagonal stays exact
    any_head: bool = False  # also calibrate heads that are fixed or not linear in the features

    protectable: ClassVar[bool] = True

    @property
    def kind(self) -> Kind:
        """Kind of second moments to compute: full for low-rank covariances too, which are factorized afterwards."""
        return "diagonal" if self.covariance == "diagonal" else "full"

    def on_method(self, method: Method) -> Self:
        """Check that the method's clients share features."""
        bound = super().on_method(method)
        if self.covariance == "low-rank":  # factors of covariances can't be summed
            object.__setattr__(bound, "sums", ())
        return bound

    def protect(self, protection: Protection, releases: int) -> Self:
        """Check that replies contain only sums."""
        if not self.adds_up:
            raise BadInput(
                f"privacy: {protection.name} needs replies that are sums: use covariance=full or diagonal, and a "
                "method that shares the classifier"
            )
        bound = super().protect(protection, releases)
        plain = bound.release is None or (bound.release.protection.directions is None and not bound.centered)
        require(plain, f"privacy: {protection.name} protects ccvr only without center and directions: leave them out")
        return bound

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check that the heads can be calibrated."""
        super().check(models, federation)
        for model in models:
            check_head(model, self.any_head, "ccvr")
            if self.covariance == "low-rank" and self.rank > model.features:
                raise BadInput(f"stage.ccvr.rank: {self.rank} is more than the features' {model.features} dimensions")

    # -- client -----------------------------------------------------------------------------------
    def transformed(self, z: Tensor) -> Tensor:
        """Apply Tukey's transformation to the real features if `tukey="real"`."""
        return tukey(z, self.power) if self.tukey == "real" else z

    def collect(self, w: Weights, client: Client) -> Tree:
        """Sum the features (Eq. 2) and factorize the sums if the covariance is low-rank."""
        total = super().collect(w, client)
        if self.covariance == "low-rank":
            total = low_rank_sums(total["count"], total["sum"], total["outer"], self.rank)
        return total

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the class statistics, and the head if the method does not share it."""
        reply = super().finish(w, client)
        if "classifier" in self.method.shared:
            return reply
        return reply._replace(send=reply.send.replace(head=w.part("classifier")))

    # -- server -----------------------------------------------------------------------------------
    @property
    def adds_up(self) -> bool:
        """True if replies contain only sums: neither low-rank covariances nor clients' own heads."""
        return bool(self.sums) and "classifier" in self.method.shared

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Merge the statistics (Eq. 3 and 4), draw virtual features and train the head on them."""
        merged = self.merge(replies, task)
        if "classifier" in self.method.shared:
            head = server["model"].part("classifier")
        else:
            head = tree_mean([sent["head"] for sent in replies.sent], replies.samples)
        return cast(Tree, head.replace(self.calibrate(task.model, head, merged, task.seed)))

    def calibrate(self, model: SplitModel, head: Tree, statistics: Statistics, seed: int = 0) -> Tree:
        """Train the classifier on virtual features and return its trained entries."""
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
    def scores(self, out: Output, w: Weights, task: Task) -> Tensor:
        """Return the head's scores; with `tukey` real or both, or bounded features, on transformed features."""
        if self.tukey not in ("real", "both") and not self.protected:
            return out.logits
        z = self.bounded(self.transformed(out.z))
        return classify(task.model, w, (tukey(z, self.power) if self.tukey == "both" else z).to(out.z))

    def architecture(self, model: SplitModel) -> SplitModel:
        """Return the model with a classifier that bounds the features, if they were bounded in the statistics."""
        if self.release is None:
            return model
        classifier = copy.deepcopy(model.classifier)
        classifier.register_forward_pre_hook(_Bounded(self.release.protection.clip))
        return with_classifier(model, classifier)

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return the personal model's scores, computed like those of the global model."""
        return self.scores(client.apply(w, x, train=False), w, client.task)


@dataclass(frozen=True)
class _Bounded:
    """Hook that bounds the features before the classifier; a class, because functions can't be pickled."""

    clip: float | None

    def __call__(self, classifier: nn.Module, entering: tuple[Tensor]) -> tuple[Tensor]:
        return (bounded(entering[0], self.clip).to(entering[0]),)
