"""Personal heads in closed form: a client's own statistics interpolated with those of all clients.

Similar to pFedFDA (McLaughlin and Su, 2024), which interpolates the means and the covariance of a client's features
with those of all clients by a weight that the client chooses on its own samples. Here the sums are interpolated, so
the head is fitted to the samples of all clients, with a higher weight for the client's own samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
from fedhead.core.training import random
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.tree.inputs import Inputs
from fedhead.core.tree.tree import Tree, Weights, stack
from fedhead.privacy.base import Protection
from fedhead.stages.closed_form import ALL_CLIENTS, MEMBERS, ClosedFormHead, as_classifier
from fedhead.stages.statistics_stage import CENTER, architecture_number, require_shared_parts

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation
    from fedhead.models.split_model import SplitModel

HEAD, SHARE = "personal_head", "own_share"  # entries of a client's state: its head, and its chosen weight t
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # candidate weights t; with t = 1 most systems are singular


@dataclass(frozen=True)
class PersonalHead(Stage):
    """One head per client: each client sends its sums and receives the total of all clients.

    The head is fitted to S(t) = (1 − t)·S + t·(N/n)·S_k, where S and N are the sums and the number of samples of all
    clients, and S_k and n those of the client. The client chooses the weight t with the lowest loss on its validation
    samples, which are left out of the sums while it chooses. The final head uses all samples. The global model has the
    head of all clients' sums.

    Args:
        validation: share of each client's samples held out to choose its weight t
        absent: treatment of a class without samples at any client: refuse it with an error, or never predict it
    """

    validation: Annotated[float, Above(0), Below(1)] = field(default=0.2, kw_only=True)
    absent: Literal["refuse", "never"] = field(default="refuse", kw_only=True)

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    broadcast: ClassVar[tuple[str, ...]] = ("model", ALL_CLIENTS)

    def prerequisite(self) -> ClosedFormHead:
        """Return the stage that collects the clients' sums and computes the global head."""
        raise NotImplementedError

    def settings(self, chosen: Tree) -> list[Tree]:
        """Return the candidate parameters of a client's head, besides its weight t.

        Args:
            chosen: Parameters that the server chose from all clients' sums.
        """
        raise NotImplementedError

    def head_of(self, sums: Tree, settings: Tree) -> Tree:
        """Fit the head to weighted sums: `weight` [C, d] and `bias` [C]; must be vectorizable over clients.

        Args:
            sums: `count` [C] (fractional), `sum` [C, d] and one second moment `outer` [d, d].
            settings: One candidate of `settings`.
        """
        raise NotImplementedError

    def losses(self, scores: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the validation loss of each sample, [B]; `there` masks the classes with samples."""
        raise NotImplementedError

    def on_method(self, method: Method) -> Self:
        """Check that the method's clients share features."""
        require_shared_parts(self.name, method)
        bound = super().on_method(method)
        if bound.prerequisite().centered:
            object.__setattr__(bound, "broadcast", (*bound.broadcast, CENTER))
        return bound

    def protect(self, protection: Protection, releases: int) -> Self:
        """Return the stage with noise on the statistics that clients send; their own part of a head has none."""
        release = self.prerequisite().protect(protection, releases).release
        return replace(self, release=release).on_method(self.method)

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Apply the collecting stage's checks; warn if personal heads can't be evaluated."""
        super().check(models, federation)
        if federation.client_test is None:
            warn_once(f"{self.name}: clients have no own test samples: set client_test=0.2 to measure personal heads")
        self._collecting().check(models, federation)

    def check_counts(self, count: Tensor) -> None:
        """Check that every class has samples, unless `absent="never"`."""
        self._collecting().check_counts(count)

    def _collecting(self) -> ClosedFormHead:
        return self.prerequisite().on_method(self.method)

    # -- server -----------------------------------------------------------------------------------
    def start_after_prerequisite(self, server: Tree, calibrated: Tree, task: Task) -> Tree:
        """Add all clients' sums to the state after the rounds."""
        names = ("calibrated", ALL_CLIENTS, MEMBERS, CENTER)
        return server.replace({name: calibrated[name] for name in names if name in calibrated})

    def per_client(self, server: Tree, client: int, task: Task) -> Tree:
        """Add a flag that is true if the total of all clients includes the client's samples."""
        member = (server[MEMBERS] == client).any() if MEMBERS in server else torch.tensor(True)
        return super().per_client(server, client, task).replace({MEMBERS: member.double()})

    # -- client -----------------------------------------------------------------------------------
    def start(self, client: Client) -> Weights:
        """Start from the model that the method's next round would start from."""
        return super().start(client).part(*PARTS)

    def finish(self, w: Weights, client: Client) -> Reply:
        """Choose the weight t on validation samples, compute the head and keep it."""
        z, y, weight, validation = self._features(w, client)
        received = client.received[ALL_CLIENTS][str(architecture_number(client.task.model))]
        total = _with_matrix(received)

        def sums(sample_weight: Tensor) -> Tree:
            return _with_matrix(batch_sums(z, y, sample_weight, client.task.classes, "pooled"))

        local, unseen = sums(weight), sums(weight * validation)
        least = 1 if self.protected else client.task.min_class_count
        large = (client.counts >= least)[y]  # smaller classes were never sent
        sent = sums(weight * validation * large) * client.received[MEMBERS]
        candidates, losses = [], []
        for share in SHARES:
            mixed = _mixed(total - sent, local - unseen, share)
            for settings in self.settings(received):
                head = self.head_of(mixed, settings)
                scores = z.double() @ head["weight"].mT + head["bias"]
                each = self.losses(scores, y, total["count"] > 0)
                losses.append((each * weight * validation).sum().nan_to_num(torch.inf))
                candidates.append(settings.replace({SHARE: torch.full_like(losses[-1], share)}))
        best = torch.stack(losses).argmin()[None]
        chosen = stack(candidates).map(lambda t: t.gather(0, best)[0])
        final = self.head_of(_mixed(total, local, chosen[SHARE]), chosen)
        if (center := self.prerequisite().center_of(client)) is not None:
            final = final.replace(center=center)
        if self.protected:  # an error would reveal whether the samples make the head finite
            final = final.map(lambda t: t.nan_to_num(0, 0, 0))
        return Reply(send=Tree(), keep=client.state.replace({HEAD: as_classifier(final), SHARE: chosen[SHARE]}))

    def _features(self, w: Weights, client: Client) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the client's features, labels, weights (0 for padding) and the mask of validation samples."""
        batches, collecting = [], self.prerequisite()
        center = collecting.center_of(client)

        def collect(batch: Batch) -> Tree:
            z = collecting.bounded(client.apply(w, batch.x, train=False).z, center)
            batches.append((z, batch.y, batch.weight.double()))
            return Tree(count=batch.weight.sum())

        client.total(collect)
        z, y, weight = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return z, y, weight, held_out(self.validation, weight, client.task.seed).double()

    # -- models -----------------------------------------------------------------------------------
    def global_model(self, server: Tree, task: Task) -> Weights | None:
        """Return the trained extractor with the head of all clients' sums."""
        return self._collecting().global_model(server, task)

    def personal_model(self, client: Client) -> Weights:
        """Return the extractor with the client's own head."""
        return self.start(client).without("classifier").replace(client.state[HEAD])

    def architecture(self, model: SplitModel) -> SplitModel:
        """Return the model with a linear layer as its classifier."""
        return self.prerequisite().architecture(model)

    def predict(self, w: Weights, x: Inputs, client: Client) -> Tensor:
        """Return the new head's scores for any classifier of the client's architecture."""
        return self.prerequisite().predict(w, x, client)


def held_out(share: float, weight: Tensor, seed: int) -> Tensor:
    """Return a mask of a random share of a client's samples, [B]; it does not depend on the padding."""
    draws = torch.as_tensor(random.uniforms(random.key(seed, "held out"), len(weight)), device=weight.device)
    order = torch.where(weight > 0, draws, 1.0).argsort().argsort()
    return order < (share * weight.sum()).floor()


def _with_matrix(sums: Tree) -> Tree:
    """Return counts, sums and the unpacked second moment, so that it is unpacked once for all candidates."""
    return Tree(count=sums["count"], sum=sums["sum"], outer=unpack(sums["outer"], sums["sum"].shape[-1]))


def _mixed(total: Tree, local: Tree, share: float | Tensor) -> Tree:
    """Return (1 − t)·S + t·(N/n)·S_k, whose counts add up to N like those of S."""
    scale = total["count"].sum() / local["count"].sum().clamp_min(1)
    mixed: Tree = total * (1 - share) + local * (share * scale)
    return mixed


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Return A⁻¹B for a positive definite A, scaled to a unit diagonal first; vectorizable, without checks.

    The system of all clients has been checked to be non-singular, and every mixture contains a part of it.
    """
    scale = matrix.diagonal().clamp_min(1e-300).sqrt()
    factor, _ = torch.linalg.cholesky_ex(matrix / scale[:, None] / scale)
    return torch.cholesky_solve(right / scale[:, None], factor) / scale[:, None]
