"""The task that all clients share: sizes, settings of local training, and the architecture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from fedhead.core.optimizers import SGD, Optimizer
from fedhead.core.parameters import Checked
from fedhead.core.ranges import Above, AtLeast, AtMost
from fedhead.data.pool import Pool
from fedhead.models.split_model import SplitModel


@dataclass(frozen=True)
class LocalTraining(Checked):
    """How clients train: the recipe's part of a client's round."""

    epochs: Annotated[int, AtLeast(1)] = 1
    batch_size: Annotated[int, AtLeast(1)] = 64
    optimizer: Optimizer = field(default_factory=lambda: SGD(lr=0.01))
    lr_decay: Annotated[float, Above(0), AtMost(1)] = 1.0  # the learning rate is multiplied by this every round
    drop_last: bool = False  # leave the last, partial batch out (kept if it is the only one)
    persistent: bool = False  # whether the optimizer's state survives from round to round


@dataclass(frozen=True)
class Task:
    """What server and clients know alike: sizes, settings and the architecture."""

    model: SplitModel
    classes: int
    clients: int
    rounds: int
    local: LocalTraining
    seed: int = 0
    participation: float = 1.0
    sizes: tuple[int, ...] = ()  # training samples a client; known to simulations, empty at real sites
    min_class_count: int = 1  # rows of smaller classes are left out of what leaves a client (`Algorithm.class_rows`)
    pool: Pool | None = field(default=None, repr=False)  # all training data, for oracles: simulations only
