"""Personal heads in closed form: a client's own statistics interpolated with those of all clients.

In the manner of pFedFDA (McLaughlin and Su, 2024), which interpolates the means and the covariance of a client's
features with those of all clients by a weight that the client chooses on its own samples. Here it is the sums that are
interpolated, so that a head is the one of all samples with the client's own weighted more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Reply
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import Task
from fedhead.calibration.sums import batch_sums
from fedhead.calibration.symmetric import unpack
from fedhead.core.components.ranges import Above, Below
from fedhead.core.system.log import warn_once
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights, stack
from fedhead.stages.closed_form import ALL_CLIENTS, MEMBERS, ClosedFormHead
from fedhead.stages.statistics_stage import architecture_number, require_shared_parts

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.models.split_model import SplitModel

HEAD, SHARE = "personal_head", "own_share"  # entries of a client's state: its head, and the weight that it chose
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # the weights t that are compared; at 1 most systems are singular


@dataclass(frozen=True)
class PersonalHead(Stage):
    """Compute a head per client: one message up with its sums, one down with those of all clients.

    The sums are S(t) = (1 − t)·S + t·(N/n)·S_k, with S and N the sums and the samples of all clients, S_k and n those
    of the client. Its weight t is the one with the least loss on a share of its samples, without which the sums are
    taken for the choice; the head is then that of all its samples. The global model is the head of all clients' sums.

    Args:
        validation: Share of each client's samples by which it chooses its weight.
        absent: What to do about a class that no client has samples of: refuse it, or never predict it.
    """

    validation: Annotated[float, Above(0), Below(1)] = field(default=0.2, kw_only=True)
    absent: Literal["refuse", "never"] = field(default="refuse", kw_only=True)

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    broadcast: ClassVar[tuple[str, ...]] = ("model", ALL_CLIENTS)

    def prerequisite(self) -> ClosedFormHead:
        """Return the stage that collects all clients' sums and computes the global head."""
        raise NotImplementedError

    def settings(self, chosen: Tree) -> list[Tree]:
        """Return the settings of a head among which a client chooses, besides its weight.

        Args:
            chosen: What the server has chosen by all clients' sums.
        """
        raise NotImplementedError

    def head_of(self, sums: Tree, settings: Tree) -> Tree:
        """Return the head of weighted sums: `weight` [C, d] and `bias` [C]; it can be vectorized over clients.

        Args:
            sums: `count` [C], which are no whole numbers any more, `sum` [C, d] and one second moment `outer` [d, d].
            settings: One entry of `settings`.
        """
        raise NotImplementedError

    def losses(self, scores: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the loss of each sample, [B], by which weights are compared; `there` says which classes exist."""
        raise NotImplementedError

    def on_method(self, method: Method) -> Self:
        """Refuse methods whose clients have no features in common."""
        require_shared_parts(self.name, method)
        return super().on_method(method)

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Refuse what the collecting stage refuses; warn where no personal head can be measured."""
        super().check(models, federation)
        if federation.client_test is None:
            warn_once(f"{self.name}: clients have no own test samples: set client_test=0.2 to measure personal heads")
        self._collecting().check(models, federation)

    def check_counts(self, count: Tensor) -> None:
        """Refuse a class without samples, unless such classes are never to be predicted."""
        self._collecting().check_counts(count)

    def _collecting(self) -> ClosedFormHead:
        return self.prerequisite().on_method(self.method)

    # -- server -----------------------------------------------------------------------------------
    def start_after_prerequisite(self, server: Tree, calibrated: Tree, task: Task) -> Tree:
        """Keep all clients' sums beside the trained model."""
        return server.replace({name: calibrated[name] for name in ("calibrated", ALL_CLIENTS, MEMBERS)})

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Tell a client whether its own samples are in all clients' sums."""
        member = (server[MEMBERS] == client).any() if MEMBERS in server else torch.tensor(True)
        return super().per_client(server, client, task).replace({MEMBERS: member.double()})

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """Start from the model of the method's next round."""
        return super().start(client).part(*PARTS)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Choose the weight on held-out samples, compute the head, and keep it."""
        z, y, weight, held = self._features(w, client)
        received = client.received[ALL_CLIENTS][str(architecture_number(client.task.model))]
        total = _with_matrix(received)

        def sums(marked: Tensor) -> Tree:
            return _with_matrix(batch_sums(z, y, marked, client.task.classes, "pooled"))

        own, unseen = sums(weight), sums(weight * held)
        large = (client.counts >= client.task.min_class_count)[y]  # smaller classes were never sent
        sent = sums(weight * held * large) * client.received[MEMBERS]
        compared, losses = [], []
        for share in SHARES:
            mixed = _mixed(total - sent, own - unseen, share)
            for settings in self.settings(received):
                head = self.head_of(mixed, settings)
                scores = z.double() @ head["weight"].mT + head["bias"]
                each = self.losses(scores, y, total["count"] > 0)
                losses.append((each * weight * held).sum().nan_to_num(torch.inf))
                compared.append(settings.replace({SHARE: torch.full_like(losses[-1], share)}))
        best = torch.stack(losses).argmin()[None]
        chosen = stack(compared).map(lambda t: t.gather(0, best)[0])
        found = self.head_of(_mixed(total, own, chosen[SHARE]), chosen)
        head = self.prerequisite().as_classifier(found, client.task)
        return Reply(send=Tree(), keep=client.state.replace({HEAD: head, SHARE: chosen[SHARE]}))

    def _features(self, w: Weights, client: Client) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the client's features, labels, weights (0 for padding) and which samples are held out."""
        found = []

        def collect(batch: Batch) -> Tree:
            found.append((client.apply(w, batch.x, train=False).z, batch.y, batch.weight.double()))
            return Tree(count=batch.weight.sum())

        client.total(collect)
        z, y, weight = (torch.cat(parts) for parts in zip(*found, strict=True))
        return z, y, weight, evenly_spaced(self.validation, len(y), y.device).double()

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """The trained extractor under the head of all clients' sums."""
        return self._collecting().global_model(server, task)

    def personal_model(self, client: Client) -> Weights:
        """The extractor under the client's own head."""
        return self.start(client).without("classifier").replace(client.state[HEAD])

    def architecture(self, model: SplitModel) -> SplitModel:
        """Return the model with a plain linear layer for a classifier."""
        return self.prerequisite().architecture(model)

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return the new head's scores, whatever classifier the client's architecture has."""
        return self.prerequisite().predict(w, x, client)


def evenly_spaced(share: float, count: int, device: torch.device | None = None) -> Tensor:
    """Return marks of a share of samples, evenly spaced in their order, [count]."""
    return (share * torch.arange(count + 1, dtype=torch.float64, device=device)).floor().diff() > 0


def _with_matrix(sums: Tree) -> Tree:
    """Return the counts, the sums and the second moment as a matrix, so that no head of a mixture unpacks it anew."""
    return Tree(count=sums["count"], sum=sums["sum"], outer=unpack(sums["outer"], sums["sum"].shape[-1]))


def _mixed(total: Tree, own: Tree, share: float | Tensor) -> Tree:
    """Return (1 − t)·S + t·(N/n)·S_k, of as many samples N as all clients have."""
    scale = total["count"].sum() / own["count"].sum().clamp_min(1)
    mixed: Tree = total * (1 - share) + own * (share * scale)
    return mixed


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Return A⁻¹B for a positive definite A, scaled to a unit diagonal first; vectorizable, so it refuses nothing.

    The system of all clients was refused if it is singular, and a part of it is in every other.
    """
    scale = matrix.diagonal().clamp_min(1e-300).sqrt()
    factor, _ = torch.linalg.cholesky_ex(matrix / scale[:, None] / scale)
    return torch.cholesky_solve(right / scale[:, None], factor) / scale[:, None]
