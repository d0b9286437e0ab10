"""CCVR: classifier calibration with virtual representations (Luo et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self, cast

from torch import Tensor

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
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import Output
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_rows import tree_mean
from fedhead.models.split_model import SplitModel, classify
from fedhead.stages.statistics_stage import StatisticsStage

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation


@stage("ccvr")
@dataclass(frozen=True)
class CCVR(StatisticsStage):
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
    # and in testing (real), to virtual features and in testing (both), to virtual features alone, or not at all: the
    # default, as none of the others was measured to be better (docs/ccvr.md). The paper's tables here have real.
    tukey: Tukey = "none"
    power: Annotated[float, Above(0), AtMost(1)] = 0.5  # λ of Tukey's transformation
    covariance: Literal["full", "diagonal", "low-rank"] = "full"  # what clients send of Σ_c
    rank: Annotated[int, AtLeast(0)] = 16  # of a low-rank covariance; its diagonal stays exact
    free: bool = False  # calibrate also a head that is fixed or not linear in the features

    @property
    def kind(self) -> Kind:
        """A low rank is made of full covariances."""
        return "diagonal" if self.covariance == "diagonal" else "full"

    def on_method(self, method: Method) -> Self:
        """Refuse methods whose clients have no features in common."""
        bound = super().on_method(method)
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
    def transformed(self, z: Tensor) -> Tensor:
        """Transform the real features, if that is where Tukey's transformation goes."""
        return tukey(z, self.power) if self.tukey == "real" else z

    def collect(self, w: Weights, client: Client) -> Tree:
        """Sum up the features (Eq. 2), and reduce the sums to a low rank where that is asked for."""
        total = super().collect(w, client)
        if self.covariance == "low-rank":
            total = low_rank_sums(total["count"], total["sum"], total["outer"], self.rank)
        return total

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the class statistics, and the head where the server has none to start from."""
        reply = super().finish(w, client)
        if "classifier" in self.method.shared:
            return reply
        return reply._replace(send=reply.send.replace(head=w.part("classifier")))

    # -- server -----------------------------------------------------------------------------------
    @property
    def adds_up(self) -> bool:
        """Factors of covariances don't add up, and the mean of heads is no plain sum."""
        return bool(self.sums) and "classifier" in self.method.shared

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Merge the statistics (Eq. 3 and 4), draw virtual features, train the head on them."""
        merged = self.merge(replies)
        if "classifier" in self.method.shared:
            head = server["model"].part("classifier")
        else:
            head = tree_mean([sent["head"] for sent in replies.sent], replies.samples)
        return cast(Tree, head.replace(self.calibrate(task.model, head, merged, task.seed)))

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
    def scores(self, out: Output, w: Weights, task: Task) -> Tensor:
        """The head's scores, of transformed features where testing transforms them."""
        if self.tukey not in ("real", "both"):
            return out.logits
        return classify(task.model, w, tukey(out.z, self.power))

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """As the global model does."""
        return self.scores(client.apply(w, x, train=False), w, client.task)
