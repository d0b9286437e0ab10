"""Phases of local training, and the replies that clients end a round with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from fedhead.algorithm.client import Client
from fedhead.core.system.errors import BadInput
from fedhead.core.training.batch import PARTS, Batch
from fedhead.core.training.optimizers import Optimizer
from fedhead.core.tree import tree as trees
from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_rows import TreeRows, as_rows


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
            after the phase. Where the state has an entry of that name before the round, only its statistics are kept,
            and the round's later phases see it; a new entry is there from `Method.finish` on.
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
    """Result of a client's round.

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
        total: The sums of what was sent, where each reply was added as it arrived (`Stage.add`); `sent` is empty
            then.
        robust_mean: What `mean` takes in place of the weighted mean, given an entry's name and what was sent under it;
            set where the run has an aggregator.
    """

    clients: Sequence[int]
    samples: Sequence[float]
    sent: Sequence[Tree]
    total: Tree | None = None
    robust_mean: Callable[[str, Sequence[Tree]], Tree] | None = field(default=None, repr=False)

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

        Raises:
            BadInput: If a client sent nothing under that name or sent integers, or if there is not one weight per
                client, with a positive sum.
        """
        rows = self._under(name)
        form = rows.schema() or schema(rows[0])
        if self.robust_mean is not None:
            _check_mean(name, form)
            mean = self.robust_mean(name, rows)
        else:
            own = [float(weight) for weight in (self.samples if weights is None else weights)]
            _check_mean(name, form, len(rows), own)
            mean = rows.mean(own)
        return mean["value"] if self._rows.holds_tensor(name) else mean

    def sum(self, name: str) -> Tree | Tensor:
        """Return the plain sum of what the clients sent under a name.

        Args:
            name: Name of the entry.

        Returns:
            The sum.
        """
        rows = self._under(name)
        if not self._rows.holds_tensor(name):
            return trees.total(list(rows))
        total: Tensor = rows[0]["value"]
        for sent in rows[1:]:
            total = total + sent["value"]
        return total

    @property
    def _rows(self) -> TreeRows:
        return as_rows(self.sent)

    def _under(self, name: str) -> TreeRows:
        """Return what each client sent under a name."""
        try:
            return self._rows.under(name)
        except KeyError as error:
            place = error.args[0]
            there = ", ".join(map(repr, self.sent[place])) or "nothing"
            raise BadInput(
                f"aggregate needs {name!r}, but client {self.clients[place]} sent {there}: let finish return "
                f"Reply(send=Tree({name}=…), keep=…), or override aggregate"
            ) from None


def _check_mean(name: str, form: Schema, count: int = 0, weights: Sequence[float] = ()) -> None:
    """Raise `BadInput` for what has no mean: integers, too few weights, or weights without a positive sum."""
    for entry, (_, dtype) in form.items():
        if not (dtype.is_floating_point or dtype.is_complex):
            full = name if entry == "value" else f"{name}/{entry}"
            raise BadInput(f"aggregate takes the mean of {full!r}, which is {dtype}: send it as .float(), or use sum")
    if len(weights) != count:
        raise BadInput(f"aggregate takes the mean of {name!r} with {len(weights)} weights for {count} replies")
    if count and not math.fsum(weights) > 0:
        raise BadInput(f"aggregate takes the mean of {name!r} with weights whose sum is not positive: {list(weights)}")
