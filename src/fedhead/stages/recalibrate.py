"""Calibration with the clients' real features: CCVR's oracle (Luo et al., 2021, Tables 1, 2 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.stage import Stage, stage
from fedhead.algorithm.task import Task
from fedhead.calibration.head import check_head
from fedhead.calibration.retrain import retrain
from fedhead.core.components.ranges import Above, AtLeast, Below
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import PARTS
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.data.pool import Pool
from fedhead.models.split_model import SplitModel

if TYPE_CHECKING:
    from fedhead.data.federation.federation import Federation


@stage("recalibrate")
@dataclass(frozen=True)
class Recalibrate(Stage):
    """Classifier retraining on all clients' real features, an upper bound for simulations (Luo et al., 2021)."""

    objectives: ClassVar[tuple[str, ...]] = ("multiclass",)
    oracle: ClassVar[bool] = True
    per_class: Annotated[int, AtLeast(1)] | None = None  # number of real features per class; None: all
    epochs: Annotated[int, AtLeast(0)] = 50  # epochs of training the classifier
    lr: Annotated[float, Above(0)] = 1e-3  # learning rate of SGD
    momentum: Annotated[float, AtLeast(0), Below(1)] = 0.9  # momentum of SGD
    weight_decay: Annotated[float, AtLeast(0)] = 1e-5  # L2 penalty of SGD
    batch_size: Annotated[int, AtLeast(1)] = 64  # features per step
    any_head: bool = False  # also calibrate heads that are fixed or not linear in the features

    def on_method(self, method: Method) -> Self:
        """Check that the method has a global model."""
        if not set(PARTS) <= set(method.shared):
            raise BadInput(f"recalibrate can't follow {method.name}: it leaves no global model to calibrate")
        return super().on_method(method)

    def check(self, models: Sequence[SplitModel], federation: Federation) -> None:
        """Check that the heads can be calibrated."""
        super().check(models, federation)
        for model in models:
            check_head(model, self.any_head, "recalibrate")

    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        """Train the head on the pooled features of all clients."""
        assert task.pool is not None, "an oracle is refused at real sites"
        w = cast(Weights, self.method.global_model(server, task))
        z, y = features(task.model, w, task.pool, self.rows(task.pool, task.seed))
        head = retrain(
            task.model,
            w.part("classifier").params,
            z,
            y,
            SGD(self.lr, self.momentum, self.weight_decay),
            self.epochs,
            self.batch_size,
            random.key(task.seed, "recalibrate", "order"),
        )
        return server.replace(model=server["model"].replace(head))

    def rows(self, pool: Pool, seed: int) -> Tensor:
        """Return the indices of the calibration samples."""
        if self.per_class is None:
            return torch.arange(len(pool))
        y = pool.y.cpu().numpy()
        order = random.permutation(random.key(seed, "recalibrate", "rows"), len(y))
        chosen = [order[y[order] == c][: self.per_class] for c in np.unique(y)]
        return torch.from_numpy(np.sort(np.concatenate(chosen)))


@torch.no_grad()
def features(
    model: SplitModel, w: Tree, pool: Pool, rows: Tensor | None = None, chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Return unaugmented features z and labels of the samples `rows` of a pool (None: all)."""
    indices = (torch.arange(len(pool)) if rows is None else rows).to(pool.device)
    parts = [functional_call(model.eval(), dict(w), (pool.view(part, None),)).z for part in torch.split(indices, chunk)]
    return torch.cat(parts), pool.y[indices]
