"""Ridge regression on one-hot labels, one message per client (Fed3R: Fanì et al., 2024; AFL: He et al., 2025)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.stage import stage
from fedhead.algorithm.task import Task
from fedhead.calibration import statistics_check
from fedhead.calibration.ridge import RidgePath, squared_error
from fedhead.calibration.statistics import Statistics
from fedhead.calibration.sums import Kind
from fedhead.core.components.ranges import Above, Below
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import Batch
from fedhead.core.tree.tree import Tree, Weights
from fedhead.stages.closed_form import ClosedFormHead
from fedhead.stages.statistics_stage import as_sent

HELD_OUT = "held_out_"  # before the names of what a client sends of its held-out samples


@stage("ridge")
@dataclass(frozen=True)
class Ridge(ClosedFormHead):
    """Solve ridge regression on all clients' features.

    W = (ΣG_k + λI)⁻¹ ΣB_k, with G_k = ZᵀZ and B_k = ZᵀY of client k. This is Fed3R (Fanì et al., 2024) and AFL (He et
    al., 2025), which differ in how the sums are sent. The penalty λ is given, chosen by the closed form of
    leave-one-out that needs only sums (generalized cross-validation), or by the squared error on a share of every
    client's samples, whose sums are sent apart; the head is then solved on all samples.
    """

    alpha: Annotated[float, Above(0)] | None = None  # λ; null: chosen
    # the share of each client's samples by whose squared error λ is chosen; null: by generalized cross-validation
    validation: Annotated[float, Above(0), Below(1)] | None = None
    intercept: bool = True  # Fed3R and AFL have none
    normalize: bool = False  # whether each class's weights are scaled to unit norm, as in Fed3R

    def __post_init__(self) -> None:
        """Refuse a choice of what is given."""
        super().__post_init__()
        if self.alpha is not None and self.validation is not None:
            raise BadInput("Ridge: validation would have no effect, alpha is given: leave one of them out")

    @property
    def kind(self) -> Kind:
        """One second moment for all classes."""
        return "pooled"

    def on_method(self, method: Method) -> Self:
        """Name what is sent of held-out samples."""
        bound = super().on_method(method)
        if self.validation is not None:
            for name in ("sums", "class_rows"):
                names: tuple[str, ...] = getattr(bound, name)
                object.__setattr__(bound, name, (*names, *(HELD_OUT + entry for entry in names)))
        return bound

    # -- client -----------------------------------------------------------------------------------
    def finish(self, w: Weights, client: Client) -> Reply:
        """Send the sums over all samples and, to choose λ by, those over the held-out samples."""
        reply = super().finish(w, client)
        if self.validation is None:
            return reply
        large = self._large(client, self.validation)
        marked = every(self.validation)
        held_out = as_sent(self.collect(w, client, lambda batch: marked(batch) & large[batch.y]), self.kind)
        return reply._replace(send=reply.send.replace({HELD_OUT + name: t for name, t in held_out.items()}))

    def _large(self, client: Client, share: float) -> Tensor:
        """Return the classes of which enough samples are held out, and enough are not, for their sums to be sent."""
        marked, classes = every(share), torch.arange(client.task.classes, device=client.counts.device)

        def count(batch: Batch) -> Tree:
            counted = (marked(batch) & (batch.weight > 0))[:, None] & (batch.y[:, None] == classes)
            return Tree(count=counted.sum(0))

        held, least = client.total(count)["count"], client.task.min_class_count
        large: Tensor = (held >= least) & (client.counts - held >= least)
        return large

    # -- server -----------------------------------------------------------------------------------
    def check_reply(self, sent: Tree, samples: float, task: Task) -> None:
        """Refuse statistics that no features have, also of held-out samples."""
        super().check_reply(sent, samples, task)
        if self.validation is not None:
            held_out, total = self.received(_held_out(sent)), self.received(sent)
            statistics_check.check_client(held_out, "the statistics of its held-out samples", samples)
            if bool((held_out.count > total.count).any()):
                raise BadInput("it holds out more samples of a class than it has")

    def new_head(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Choose λ, and solve on all samples."""
        if self.validation is None:
            return super().new_head(server, replies, task)
        held_out = self.merge(replies, _held_out)
        alpha = self.choose(self.merge(replies), held_out)
        return replace(self, alpha=alpha, validation=None).new_head(server, replies, task)

    def choose(self, statistics: Statistics, held_out: Statistics | None = None) -> float:
        """Return the penalty λ that a head of these statistics is solved with.

        Args:
            statistics: Statistics of all samples.
            held_out: Statistics of those by which λ is chosen; None: by generalized cross-validation.
        """
        if self.alpha is not None:
            return self.alpha
        if held_out is None:
            return RidgePath.of(statistics, self.intercept).best()
        if not bool(held_out.count.any()) or bool((held_out.count == statistics.count).all()):
            raise BadInput("ridge: no client could hold samples out: give alpha, or another validation share")
        sums = (statistics.count - held_out.count, statistics.sum - held_out.sum, statistics.outer - held_out.outer)
        path = RidgePath.of(Statistics(*sums), self.intercept)
        return min(path.penalties(), key=lambda alpha: squared_error(path.solve(alpha), held_out))

    def chosen(self, statistics: Statistics) -> Tree:
        """Return the penalty."""
        return Tree(alpha=statistics.count.new_tensor(self.choose(statistics)))

    def solve(self, statistics: Statistics, numbers: Sequence[int]) -> Tree:
        """Return the ridge solution."""
        if self.validation is not None:
            raise BadInput("ridge: validation needs the sums of held-out samples, which only a run collects")
        path = RidgePath.of(statistics, self.intercept)
        head = path.solve(path.best() if self.alpha is None else self.alpha)
        if not self.normalize:
            return head
        norm = head["weight"].norm(dim=1).clamp_min(1e-300)
        return Tree(weight=F.normalize(head["weight"], dim=1), bias=head["bias"] / norm)


def every(share: float) -> Callable[[Batch], Tensor]:
    """Return what marks a share of a client's samples, evenly spaced in the order in which `Client.total` has them."""
    begin = 0

    def marked(batch: Batch) -> Tensor:
        nonlocal begin
        place = torch.arange(begin, begin + len(batch.y) + 1, dtype=torch.float64, device=batch.y.device)
        begin += len(batch.y)
        return (share * place).floor().diff() > 0

    return marked


def _held_out(sent: Tree) -> Tree:
    return Tree({name.removeprefix(HELD_OUT): t for name, t in sent.items() if name.startswith(HELD_OUT)})
