"""Phases of local training, and the replies that clients end a round with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.core import tree as trees
from fedhead.core.batch import PARTS, Batch
from fedhead.core.errors import BadInput
from fedhead.core.optimizers import Optimizer
from fedhead.core.stacked_trees import StackedTrees, weighted_mean
from fedhead.core.tree import Tree, Weights


@dataclass(frozen=True)
class Phase:
    """One phase of local training.

    Args:
        loss: Loss of a batch (weights, batch, client): one number, or one value per sample, weighted by `batch.weight`.
        trains: Prefixes of the parameters that are trained; what a head fixes only when named in full.
        epochs: Passes over the data; None: the run's local epochs.
        optimizer: None: the run's.
        batch_size: None: the run's.
        on: The model that is trained: the working model, or the client's own of that name in its state.
        data: `private` (the client's) or `public`.
        begins: The first round in which the phase takes place.
        ends: The last one; None: that of the run.
        corrects: Whether `Method.correct` sees the phase's gradients.
        saves: Name under which the client's state keeps what this phase trained and the running statistics, as they are
            after the phase.
        scheduled: Whether the run's decay and schedule of the learning rate apply, or the optimizer's rate stays.
    """

    loss: Callable[[Weights, Batch, Client], Tensor]
    trains: tuple[str, ...] = PARTS
    epochs: int | None = None
    optimizer: Optimizer | None = None
    batch_size: int | None = None
    on: str = "model"
    data: str = "private"
    begins: int = 1
    corrects: bool = True
    saves: str | None = None
    scheduled: bool = True
    ends: int | None = None


class Reply(NamedTuple):
    """What a client ends a round with.

    Attributes:
        send: What is sent to the server.
        keep: The client's new state, which stays with it.
        losses: The mean loss of the local steps under `train`; the engine fills it in.
    """

    send: Tree
    keep: Tree
    losses: Tree = Tree()


@dataclass(frozen=True)
class Replies:
    """The replies of one round, in the order of the clients' numbers.

    Args:
        clients: Numbers of the clients.
        samples: n_k, the number of training samples behind each reply.
        sent: What each client sent.
        total: The sums of what was sent, where each reply was added as it arrived (`Algorithm.add`); `sent` is empty
            then.
        robust_mean: What `mean` takes in place of the weighted mean, given an entry's name and what was sent under it;
            set where the run has an aggregator.
        weighted_mean: Computes the weighted mean; set where several runs compute theirs at once.
    """

    clients: Sequence[int]
    samples: Sequence[float]
    sent: Sequence[Tree]
    total: Tree | None = None
    robust_mean: Callable[[str, Sequence[Tree]], Tree] | None = field(default=None, repr=False)
    weighted_mean: Callable[[Sequence[Tree], list[float]], Tree] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.clients)

    def mean(self, name: str, weights: Sequence[float] | None = None) -> Any:
        """Return the mean of what the clients sent under a name.

        Args:
            name: Name of the entry.
            weights: One weight per client; None: the numbers of samples. An aggregator counts all clients alike.

        Returns:
            The weighted mean, or what the run's aggregator takes in place of it: a tree, or a tensor where the clients
            sent one.
        """
        if isinstance(self.sent, StackedTrees) and self.robust_mean is None and name in self.sent.stacked:
            found = self._weighted_mean(self.sent.under(name), weights)
            return found if isinstance(self.sent.stacked[name], Tree) else found["value"]
        sent = self._sent(name)
        if isinstance(sent[0], Tensor):  # averaged as a tree of one
            wrapped = [Tree({name: Tree(value=entry)}) for entry in sent]
            return replace(self, sent=wrapped).mean(name, weights)["value"]
        if self.robust_mean is not None:
            return self.robust_mean(name, sent)
        return self._weighted_mean(sent, weights)

    def _weighted_mean(self, sent: Sequence[Tree], weights: Sequence[float] | None) -> Tree:
        return (self.weighted_mean or weighted_mean)(sent, list(self.samples if weights is None else weights))

    def sum(self, name: str) -> Tree | Tensor:
        """Return the plain sum of what the clients sent under a name.

        Args:
            name: Name of the entry.

        Returns:
            The sum.
        """
        first, *others = self._sent(name)
        if isinstance(first, Tree):
            return trees.total([first, *others])
        total: Tensor = first
        for sent in others:
            total = total + sent
        return total

    def _sent(self, name: str) -> list[Any]:
        """What each client sent under a name."""
        for client, sent in zip(self.clients, self.sent, strict=True):
            if name not in sent:
                there = ", ".join(map(repr, sent)) or "nothing"
                raise BadInput(
                    f"aggregate needs {name!r}, but client {client} sent {there}: let finish return "
                    f"Reply(send=Tree({name}=…), keep=…), or override aggregate"
                )
        return [sent[name] for sent in self.sent]
