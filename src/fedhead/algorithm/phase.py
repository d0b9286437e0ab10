"""Phases of local training, and the replies that clients end a round with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.core import tree as trees
from fedhead.core.batch import PARTS, Batch
from fedhead.core.optimizers import Optimizer
from fedhead.core.tree import Tree, Weights


@dataclass(frozen=True)
class Phase:
    """One phase of local training."""

    loss: Callable[[Weights, Batch, Client], Tensor]  # one number, or one value per sample, which batch.weight weighs
    trains: tuple[str, ...] = PARTS  # prefixes of what is trained; what a head fixes only when named in full
    epochs: int | None = None  # None: the run's local epochs
    optimizer: Optimizer | None = None  # None: the run's
    batch_size: int | None = None  # None: the run's
    on: str = "model"  # the working model, or the client's own model of that name in its state
    data: str = "private"  # or "public"
    begins: int = 1  # the first round in which it takes place
    corrects: bool = True  # whether Method.correct sees this phase's gradients
    saves: str | None = None  # a name under which the client's state keeps what this phase trained, as it was then


class Reply(NamedTuple):
    """What a client ends a round with."""

    send: Tree  # crosses the wire
    keep: Tree  # stays with the client


@dataclass(frozen=True)
class Replies:
    """The replies of one round, in the order of the clients' numbers."""

    clients: Sequence[int]
    samples: Sequence[float]  # n_k, the training samples behind each reply
    sent: Sequence[Tree]

    def __len__(self) -> int:
        return len(self.clients)

    def mean(self, name: str, weights: Sequence[float] | None = None) -> Tree:
        """The mean of what the clients sent under `name`, weighted by their sample counts unless told otherwise."""
        return trees.mean([s[name] for s in self.sent], list(self.samples if weights is None else weights))

    def sum(self, name: str) -> Tree | Tensor:
        """The plain sum of what the clients sent under `name`."""
        total = self.sent[0][name]
        for sent in self.sent[1:]:
            total = total + sent[name]
        return total  # type: ignore[no-any-return]  # a tree's entries are untyped
