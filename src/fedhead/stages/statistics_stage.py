"""Base of the stages that compute a head from the clients' class statistics, in one message per client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.calibration import low_rank, statistics_check
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import Kind, batch_sums
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.tree.tree import Tree, Weights
from fedhead.models.split_model import SplitModel

OUTER = "second_moment"  # of all classes: sent apart from what has one row per class
LARGER = 1000  # features of one model that differ so much would leave nothing of the other clients' in a head


@dataclass(frozen=True)
class StatisticsStage(Stage):
    """Clients send the class statistics of their features; the server computes a head from them.

    Where clients differ in architecture, each architecture has its own statistics and head. The head is kept under
    `calibrated` in the server's state, beside the trained model.
    """

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    broadcast: ClassVar[tuple[str, ...]] = ("model", "calibrated")
    sums: ClassVar[tuple[str, ...]] = ("statistics", OUTER)
    class_rows: ClassVar[tuple[str, ...]] = ("statistics",)

    @property
    def kind(self) -> Kind:
        """What clients send of second moments."""
        raise NotImplementedError

    def on_method(self, method: Method) -> Self:
        """Refuse methods whose clients have no features in common."""
        require_shared_parts(self.name, method)
        return super().on_method(method)

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """The model that the method would begin its next round with, without what the method keeps beside it."""
        return super().start(client).part(*PARTS)

    def transformed(self, z: Tensor) -> Tensor:
        """Return what statistics are taken of; the features themselves by default."""
        return z

    def collect(self, w: Weights, client: Client) -> Tree:
        """Return the sums over the client's samples, without its small classes."""
        large = client.counts >= client.task.min_class_count

        def sums(batch: Batch) -> Tree:
            z, weight = self.transformed(client.apply(w, batch.x, train=False).z), batch.weight
            if client.task.min_class_count > 1:
                weight = weight * large[batch.y]
            return batch_sums(z, batch.y, weight, client.task.classes, self.kind)

        return client.total(sums)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the class statistics of the features, as sums."""
        sums, number = self.collect(w, client), architecture_number(client.task.model)
        send = Tree(statistics=sums)
        if self.kind == "pooled":
            send = Tree({"statistics": sums.without("outer"), OUTER: sums["outer"]})
        return Reply(send.replace(architecture=torch.tensor(number, device=client.counts.device)), client.state)

    # -- server -----------------------------------------------------------------------------------
    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Refuse statistics that no features of so many samples have."""
        statistics_check.check(self.received(sent), "its statistics", samples=samples)
        if int(sent["architecture"]) != architecture_number(task.model):
            raise BadInput("its statistics are those of another architecture")

    def add(self, total: Tree, sent: Tree) -> Tree:
        """Add a client's sums to those of its architecture, in the order in which `merge` would."""
        group, sums = str(int(sent["architecture"])), Tree({name: sent[name] for name in self.sums if name in sent})
        if group not in total:
            return total.replace({group: sums.clone()})
        total[group].map(Tensor.add_, sums)
        return total

    def summary_for_comparison(self, sent: Tree) -> Tree:
        """Return the size of the client's features."""
        size = statistics_check.feature_size(self.received(sent))
        return Tree(architecture=sent["architecture"], size=torch.tensor(size, dtype=torch.float64))

    def find_inconsistent_replies(self, digests: Mapping[int, Tree]) -> dict[int, str]:
        """Return whose features are far larger than those of the other clients of the architecture."""
        sizes: dict[int, dict[int, float]] = {}
        for k, digest in digests.items():
            sizes.setdefault(int(digest["architecture"]), {})[k] = float(digest["size"])
        found = {}
        for group in sizes.values():
            limit = LARGER * median([size for size in group.values() if size] or [0.0])
            for k, size in group.items():
                if 0 < limit < size:
                    found[k] = f"its features have a size of {size:.3g}, more than {LARGER} times the clients' median"
        return found

    def received(self, sent: Tree) -> Statistics:
        """Return the statistics in a client's reply."""
        sums: Tree = sent["statistics"]
        return low_rank.from_tree(sums.replace(outer=sent[OUTER]) if OUTER in sent else sums)

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Compute the head of each architecture from the statistics of its clients."""
        each = by_architecture(replies)
        return server.replace(calibrated=Tree({name: self.new_head(server, own, task) for name, own in each.items()}))

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Return the head for clients of one architecture, as the classifier's entries by full name."""
        raise NotImplementedError

    def merge(self, replies: Replies) -> Statistics:
        """Return the statistics of all clients together; refuse those that no features could have, by client.

        Args:
            replies: What the clients of one architecture sent, or its total.
        """
        if replies.total is not None:  # each was checked when it was added
            return statistics_check.check(self.received(replies.total), "the merged statistics")
        sources = [f"statistics of client {k}" for k in replies.clients]
        return statistics_check.merge_checked(sources, lambda i: self.received(replies.sent[i]))

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """The trained extractor under the new head, where clients share one extractor."""
        extractor = [part for part in PARTS if part != "classifier"]
        if "calibrated" not in server or not set(extractor) <= set(self.method.shared):
            return None
        return self.under(server["model"].part(*PARTS), server["calibrated"], task)

    def personal_model(self, client: Client) -> Weights:
        """The client's extractor under the new head."""
        return self.under(self.start(client), client.received["calibrated"], client.task)

    def under(self, w: Weights, heads: Tree, task: Task) -> Weights:
        """Return a model with the new head of its architecture."""
        return w.replace(heads[str(architecture_number(task.model))])


def require_shared_parts(name: str, method: Method) -> None:
    """Raise `BadInput` for a stage after a method whose clients have no features in common."""
    if not set(method.shared) & {"extractor", "classifier"}:
        raise BadInput(
            f"{name} can't follow {method.name}: its clients share neither extractor nor classifier, "
            f"so the features of one mean nothing to another"
        )


def by_architecture(replies: Replies) -> dict[str, Replies]:
    """Return the replies of the clients of each architecture, or their total, by the architecture's number."""
    if replies.total is not None:
        return {group: replace(replies, total=sums) for group, sums in replies.total.items()}
    groups: dict[str, list[int]] = {}
    for place, reply in enumerate(replies.sent):
        groups.setdefault(str(int(reply["architecture"])), []).append(place)
    return {group: _some(replies, places) for group, places in groups.items()}


def _some(replies: Replies, places: Sequence[int]) -> Replies:
    """Return the replies at these places."""
    clients, samples = [replies.clients[i] for i in places], [replies.samples[i] for i in places]
    return Replies(clients, samples, [replies.sent[i] for i in places])


def architecture_number(model: SplitModel) -> int:
    """A number for a model's architecture, the same wherever its tensors have the same names and shapes."""
    return random.key(*(f"{name} {tuple(p.shape)}" for name, p in model.named_parameters()))
