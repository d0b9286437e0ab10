"""Closed-form heads: one message per client gives the same head as the pooled features of all clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import Task
from fedhead.calibration.statistics import Statistics
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.models.closed_form_heads import BoundedLinear, DoubleLinear, linear_scores
from fedhead.models.split_model import SplitModel
from fedhead.stages.statistics_stage import StatisticsStage, by_architecture, with_classifier

ALL_CLIENTS, MEMBERS = "all_clients", "members"  # entries of the server's state: merged sums and their clients
NEVER = -1e9  # score of a class that is never predicted


@dataclass(frozen=True)
class ClosedFormHead(StatisticsStage):
    """Head computed from merged statistics without training; it replaces the model's classifier.

    It follows the rounds of any method, or is used alone with `rounds: 0` on a pretrained model.

    Args:
        absent: Treatment of a class without samples at any client: refuse it, or never predict it.
    """

    absent: Literal["refuse", "never"] = field(default="refuse", kw_only=True)
    kept_for: str = field(default="", repr=False, kw_only=True)  # stage for which the server keeps the sums

    @property
    def may_lack_classes(self) -> bool:
        """True if a class without samples at any client is never predicted, instead of refused."""
        return self.absent == "never"

    @property
    def given_name(self) -> str:
        """Name of the stage in error messages: the one that the user requested."""
        return self.kept_for or self.name

    def check_counts(self, count: Tensor) -> None:
        """Check that every class has samples, unless `absent="never"`."""
        for c in torch.nonzero(count == 0).flatten().tolist() if self.absent == "refuse" else ():
            raise BadInput(
                f"{self.given_name}: no client has a sample of class {c}: leave the class out of the data, or set "
                f"stage.{self.given_name}.absent=never so that it is never predicted"
            )

    @property
    def adds_up(self) -> bool:
        """True if clients send sums: the head needs only their total per architecture."""
        return bool(self.sums)

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Compute the heads, and keep the sums if personal heads are computed from them."""
        server = super().aggregate(server, replies, task)
        if not self.kept_for:
            return server
        merged = {name: self.merge(group, task) for name, group in by_architecture(replies).items()}
        sums = Tree({name: total.tree().replace(self.chosen(total)) for name, total in merged.items()})
        return server.replace({ALL_CLIENTS: sums, MEMBERS: torch.tensor(list(replies.clients))})

    def chosen(self, statistics: Statistics) -> Tree:
        """Return parameters that were chosen from the statistics, such as λ."""
        return Tree()

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Merge the statistics and solve for the head."""
        return as_classifier(self.fit(self.merge(replies, task)))

    def fit(self, statistics: Statistics) -> Tree:
        """Fit the head to merged statistics.

        Args:
            statistics: Merged statistics of all clients, of the stage's `kind`.

        Returns:
            Parameters of the head in float64, with one row per class.

        Raises:
            BadInput: If a class has no samples, or the system has no unique solution.
        """
        self.check_counts(statistics.count)
        present = torch.nonzero(statistics.count > 0).flatten()
        if not len(present):
            raise BadInput(f"{self.given_name}: the statistics hold no samples of any class")
        head = self.solve(statistics.of_classes(present), present.tolist())
        if len(present) == statistics.classes:
            return head
        rows = {name: t.new_zeros(statistics.classes, *t.shape[1:]) for name, t in head.items()}
        rows["bias"] += NEVER
        return Tree({name: t.index_copy(0, present, head[name]) for name, t in rows.items()})

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Solve for the head of classes that all have samples: `weight` [C, d] and `bias` [C] in float64.

        Args:
            statistics: Statistics of the classes.
            numbers: Class numbers, for error messages.
        """
        raise NotImplementedError

    # -- models -----------------------------------------------------------------------------------
    def architecture(self, model: SplitModel) -> SplitModel:
        """Return the model with a linear layer in double precision as its classifier."""
        if self.release is None:
            return with_classifier(model, DoubleLinear(model.features, model.classes))
        clip, directions = self.release.protection.clip, self.release.protection.directions
        classifier = BoundedLinear(model.features, model.classes, clip, self.centered, directions)
        return with_classifier(model, classifier)

    def logits(self, w: Weights, z: Tensor) -> Tensor:
        """Return the head's scores of features, [B, C]."""
        z = self.bounded(z, w["classifier.center"] if self.centered else None)
        return linear_scores(z, w["classifier.weight"], w["classifier.bias"])

    def under(self, w: Weights, heads: Tree, task: Task) -> Weights:
        """Return the model with its classifier replaced."""
        return super().under(w.without("classifier"), heads, task)

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return the new head's scores of the features; the architecture's own classifier is not used."""
        return self.logits(w, client.apply(w.without("classifier"), x, train=False).z)


def as_classifier(head: Tree) -> Tree:
    """Return a head with the classifier's full parameter names."""
    return Tree({f"classifier.{name}": t for name, t in head.items()})
