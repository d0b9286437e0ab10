"""The nouns of the library: batches, outputs, replies, phases and the task that all clients share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from fedhead import tree as trees
from fedhead.optim import SGD, Optimizer
from fedhead.tree import Tree

if TYPE_CHECKING:
    from fedhead.client import Client
    from fedhead.data.pool import Pool
    from fedhead.models.split import Split
    from fedhead.tree import Weights

PARTS = ("extractor", "projection", "classifier")  # the named parts of every model, in order


class Batch(NamedTuple):
    """Samples of one client: the last batch of an epoch is topped up with rows of weight 0."""

    x: Tensor  # inputs, augmented and normalised
    y: Tensor  # labels
    weight: Tensor  # 1 for a sample, 0 for padding
    rows: Tensor  # where they stand in the pool
    key: Tensor  # one random key a sample, for further views of it


class Output(NamedTuple):
    """What a model says of a batch."""

    h: Tensor  # the extractor's features
    z: Tensor  # the classifier's input (the projected features)
    logits: Tensor


class Reply(NamedTuple):
    """What a client ends a round with."""

    send: Tree  # crosses the wire
    keep: Tree  # stays with the client


@dataclass(frozen=True)
class Phase:
    """One stretch of local training."""

    loss: Callable[[Weights, Batch, Client], Tensor]
    trains: tuple[str, ...] = PARTS  # prefixes of what is trained; what a head fixes only when named in full
    epochs: int | None = None  # None: the run's local epochs
    optimizer: Optimizer | None = None  # None: the run's
    batch_size: int | None = None  # None: the run's
    on: str = "model"  # the working model, or the client's own model of that name in its state
    data: str = "private"  # or "public"
    begins: int = 1  # the first round in which it takes place
    corrects: bool = True  # whether Method.correct sees this phase's gradients
    saves: str | None = None  # a name under which the client's state keeps what this phase trained, as it was then


@dataclass(frozen=True)
class Local:
    """How clients train: the recipe's part of a client's round."""

    epochs: int = 1
    batch_size: int = 64
    optimizer: Optimizer = field(default_factory=lambda: SGD(lr=0.01))
    lr_decay: float = 1.0  # the learning rate is multiplied by this every round
    drop_last: bool = False  # leave the last, partial batch out (kept if it is the only one)
    persistent: bool = False  # whether the optimiser's state survives from round to round


@dataclass(frozen=True)
class Task:
    """What server and clients know alike: sizes, settings and the architecture."""

    model: Split
    classes: int
    clients: int
    rounds: int
    local: Local
    seed: int = 0
    participation: float = 1.0
    sizes: tuple[int, ...] = ()  # training samples a client; known to simulations, empty at real sites
    pool: Pool | None = field(default=None, repr=False)  # all training data, for oracles: simulations only


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
