"""Personal heads by ridge regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedhead.algorithm.stage import stage
from fedhead.core.components.ranges import Above
from fedhead.core.tree.tree import Tree
from fedhead.stages.closed_form import NEVER, ClosedFormHead
from fedhead.stages.personal_head import PersonalHead, solve
from fedhead.stages.ridge import Ridge

PENALTIES = (1e-6, 1e-4, 1e-2, 1.0)  # candidate penalties, relative to the mean eigenvalue of the second moment


@stage("personal_ridge")
@dataclass(frozen=True)
class PersonalRidge(PersonalHead):
    """Ridge regression on a client's own statistics interpolated with all clients'; see `PersonalHead`.

    A client chooses its weight t, and its penalty λ unless given, by the squared error on one-hot labels. If clients
    contradict each other, the penalty chosen from all clients' sums is far too large for each of them.
    """

    alpha: Annotated[float, Above(0)] | None = None  # λ, ridge penalty; null: chosen by each client
    intercept: bool = True  # intercept of the regression

    def prerequisite(self) -> ClosedFormHead:
        """Return ridge regression on all clients' sums."""
        return Ridge(
            self.alpha, self.intercept, absent=self.absent, kept_for=self.name, method=self.method, release=self.release
        )

    def settings(self, chosen: Tree) -> list[Tree]:
        """Return the candidate penalties: the given one, or the server's choice and the values of `PENALTIES`."""
        alpha, zero = chosen["alpha"], torch.zeros_like(chosen["alpha"])
        relative = PENALTIES if self.alpha is None else ()
        return [Tree(alpha=alpha, relative=zero), *(Tree(alpha=zero, relative=zero + value) for value in relative)]

    def head_of(self, sums: Tree, settings: Tree) -> Tree:
        """Return W = (G + λI)⁻¹B, as `ridge` does."""
        count, total = sums["count"], sums["sum"]
        samples, moment, right = count.sum(), sums["outer"], total.mT
        mean, share = total.sum(-2) / samples, count / samples
        if self.intercept:
            moment, right = moment - samples * torch.outer(mean, mean), right - torch.outer(mean, count)
        else:
            mean, share = torch.zeros_like(mean), torch.zeros_like(share)
        penalty = settings["alpha"] + settings["relative"] * moment.diagonal().mean()
        weight = solve(moment + penalty * torch.eye(len(mean), dtype=moment.dtype, device=moment.device), right).mT
        return Tree(weight=weight, bias=torch.where(count > 0, share - weight @ mean, NEVER))

    def losses(self, scores: Tensor, y: Tensor, there: Tensor) -> Tensor:
        """Return the squared error over the classes with samples."""
        labels = (y[:, None] == torch.arange(scores.shape[-1], device=y.device)).double()
        return ((scores - labels).square() * there).sum(-1)
