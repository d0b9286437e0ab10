"""Heads in closed form: one message per client, and the head that training on all features in one place would give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import Task
from fedhead.calibration.statistics import Statistics, merge
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights
from fedhead.models.split_model import SplitModel
from fedhead.stages.statistics_stage import StatisticsStage, by_architecture

ALL_CLIENTS, MEMBERS = "all_clients", "members"  # in the server's state: the merged sums, and whose they are
NEVER = -1e9  # the score of a class that is never predicted


@dataclass(frozen=True)
class ClosedFormHead(StatisticsStage):
    """A head that is computed from merged statistics, without training; it replaces the classifier, whatever that is.

    It follows the rounds of any method, or stands alone with `rounds: 0` on a model that comes with its weights.

    Args:
        absent: What to do about a class that no client has samples of: refuse it, or never predict it.
    """

    absent: Literal["refuse", "never"] = field(default="refuse", kw_only=True)
    kept_for: str = field(default="", repr=False, kw_only=True)  # the stage that the server keeps the sums for

    @property
    def given_name(self) -> str:
        """The stage that the user asked for, which errors name."""
        return self.kept_for or self.name

    def check_counts(self, count: Tensor) -> None:
        """Refuse a class without samples, unless such classes are never to be predicted."""
        for c in torch.nonzero(count == 0).flatten().tolist() if self.absent == "refuse" else ():
            raise BadInput(
                f"{self.given_name}: no client has a sample of class {c}: leave the class out of the data, or set "
                f"stage.{self.given_name}.absent=never so that it is never predicted"
            )

    @property
    def adds_up(self) -> bool:
        """The head needs only the sums over all clients of an architecture, where clients send sums."""
        return bool(self.sums)

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Compute the heads, and keep the sums where personal heads are to be computed from them."""
        server = super().aggregate(server, replies, task)
        if not self.kept_for:
            return server
        found = {name: self.merge(own) for name, own in by_architecture(replies).items()}
        merged = Tree({name: one.tree().replace(self.chosen(one)) for name, one in found.items()})
        return server.replace({ALL_CLIENTS: merged, MEMBERS: torch.tensor(list(replies.clients))})

    def chosen(self, statistics: Statistics) -> Tree:
        """Return the settings that were chosen by the statistics, by name."""
        return Tree()

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Merge the statistics and solve for the head."""
        return self.as_classifier(self.fit(self.merge(replies)), task)

    def as_classifier(self, head: Tree, task: Task) -> Tree:
        """Return a head under the classifier's full names, in the type of the model."""
        return Tree({f"classifier.{name}": t.to(next(task.model.parameters()).dtype) for name, t in head.items()})

    def fit_clients(self, parts: Sequence[Statistics]) -> Tree:
        """Return the head of the statistics of several clients; see `fit`."""
        return self.fit(merge(parts))

    def fit(self, statistics: Statistics) -> Tree:
        """Return the head of merged statistics.

        Args:
            statistics: Statistics of all clients together, of the kind that the stage collects.

        Returns:
            The parameters of the head in float64, with one row per class.

        Raises:
            BadInput: If a class has no samples, or the system has no unique solution.
        """
        self.check_counts(statistics.count)
        there = torch.nonzero(statistics.count > 0).flatten()
        if not len(there):
            raise BadInput(f"{self.given_name}: the statistics hold no samples of any class")
        found = self.solve(statistics.of_classes(there), there.tolist())
        if len(there) == statistics.classes:
            return found
        rows = {name: t.new_zeros(statistics.classes, *t.shape[1:]) for name, t in found.items()}
        rows["bias"] += NEVER
        return Tree({name: t.index_copy(0, there, found[name]) for name, t in rows.items()})

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Return the head of classes that all have samples: `weight` [C, d] and `bias` [C] in float64.

        Args:
            statistics: Statistics of these classes.
            numbers: Their numbers, for error messages.
        """
        raise NotImplementedError

    # -- models -----------------------------------------------------------------------------------
    def architecture(self, model: SplitModel) -> SplitModel:
        """Return the model with a plain linear layer for a classifier."""
        if type(model.classifier) is nn.Linear and model.classifier.bias is not None:
            return model
        return with_classifier(model, _blank_linear(model.features, model.classes))

    def logits(self, w: Weights, z: Tensor) -> Tensor:
        """Return the head's scores of features, [B, C]."""
        return F.linear(z, w["classifier.weight"], w["classifier.bias"])

    def under(self, w: Weights, heads: Tree, task: Task) -> Weights:
        """Return the model with the new head alone: the old classifier may have other entries."""
        return super().under(w.without("classifier"), heads, task)

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return the new head's scores, whatever classifier the client's architecture has."""
        return self.logits(w, client.apply(w.without("classifier"), x, train=False).z)


def _blank_linear(features: int, classes: int) -> nn.Linear:
    """Return a linear layer without first weights, for which no random numbers are drawn."""
    made: nn.Linear = nn.utils.skip_init(nn.Linear, features, classes)  # type: ignore[no-untyped-call]  # torch's
    return made


def with_classifier(model: SplitModel, classifier: nn.Module) -> SplitModel:
    """Return a model that shares all parts with another one but its classifier."""
    made = SplitModel(model.extractor, classifier, model.projection)
    made.origin, made.kept_width = model.origin, model.kept_width
    return made
