"""Phases of local training, and the clients' replies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

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
        loss: Loss function of (weights, batch, client): a scalar, or one value per sample, weighted by `batch.weight`.
        trains: Prefixes of the trained parameters; fixed head parameters only by their full name.
        epochs: Passes over the data; None: the run's local epochs.
        optimizer: Optimizer; None: the run's.
        batch_size: Samples per step; None: the run's.
        model: Trained model: `model` (the working model), or the name of a model in the client's state.
        data: `private` (the client's) or `public`.
        first_round: First round of the phase.
        last_round: Last round of the phase; None: the run's.
        corrects: Whether `Method.correct` is applied to the phase's gradients.
        saves: Name of an entry of `client.state` with the trained parameters and running statistics after the phase;
            `Method.finish` sees it.
        scheduled: Whether the run's learning rate decay and schedule apply to the optimizer's learning rate.
    """

    loss: Callable[[Weights, Batch, Client], Tensor]
    trains: tuple[str, ...] = PARTS
    epochs: int | None = None
    optimizer: Optimizer | None = None
    batch_size: int | None = None
    model: str = "model"
    data: str = "private"
    first_round: int = 1
    corrects: bool = True
    saves: str | None = None
    scheduled: bool = True
    last_round: int | None = None


class Reply(NamedTuple):
    """Result of a client's round.

    Attributes:
        send: Entries that are sent to the server.
        keep: New client state, which never leaves the client.
        losses: Mean loss of the local steps under `train`, set by the engine.
    """

    send: Tree
    keep: Tree
    losses: Tree = Tree()


@dataclass(frozen=True)
class Replies:
    """Replies of one round, ordered by client number.

    Args:
        clients: Numbers of the clients.
        samples: n_k, number of training samples of each client, divided by its inclusion probability if the run's
            sampler has different ones. Other weights of `mean` are not divided.
        sent: Entries that each client sent.
        total: Totals over the replies, if each reply was added on arrival (`Stage.add`) or by a secure sum; `sent` is
            then empty. After a secure sum, entries of a method that are not in `sums` are means weighted by samples.
        robust_mean: The run's aggregator, or its noisy mean, which replaces the weighted mean; called with an entry's
            name and the clients' values.
    """

    clients: Sequence[int]
    samples: Sequence[float]
    sent: Sequence[Tree]
    total: Tree | None = None
    robust_mean: Callable[[str, Sequence[Tree]], Tree] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.clients)

    def mean(self, name: str, weights: Sequence[float] | None = None) -> Any:
        """Return the mean of an entry over clients.

        Args:
            name: Name of the entry.
            weights: One weight per client; None: the numbers of samples. Ignored if the run has an aggregator.

        Returns:
            The weighted mean, or the result of the run's aggregator: a tree, or a tensor if clients sent a tensor.

        Raises:
            BadInput: If a client did not send the entry or sent integers, the number of weights is wrong, or their sum
                is not positive.
        """
        if self.total is not None:
            return self.total[name]
        if self.robust_mean is not None and not self.clients:
            return self.robust_mean(name, [])
        rows = self._under(name)
        form = rows.schema() or schema(rows[0])
        if self.robust_mean is not None:
            _check_mean(name, form)
            mean = self.robust_mean(name, rows)
        else:
            shares = [float(weight) for weight in (self.samples if weights is None else weights)]
            _check_mean(name, form, len(rows), shares)
            mean = rows.mean(shares)
        return mean["value"] if self._rows.holds_tensor(name) else mean

    def sum(self, name: str) -> Tree | Tensor:
        """Return the unweighted sum of an entry over clients.

        Args:
            name: Name of the entry.

        Returns:
            The sum.
        """
        if self.total is not None:
            return cast(Tree | Tensor, self.total[name])
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
        """Return an entry of each client."""
        try:
            return self._rows.under(name)
        except KeyError as error:
            position = error.args[0]
            entries = ", ".join(map(repr, self.sent[position])) or "nothing"
            raise BadInput(
                f"aggregate needs {name!r}, but client {self.clients[position]} sent {entries}: let finish return "
                f"Reply(send=Tree({name}=…), keep=…), or override aggregate"
            ) from None


def _check_mean(name: str, form: Schema, count: int = 0, weights: Sequence[float] = ()) -> None:
    """Raise `BadInput` for integers, a wrong number of weights, or weights without a positive sum."""
    for entry, (_, dtype) in form.items():
        if not (dtype.is_floating_point or dtype.is_complex):
            full = name if entry == "value" else f"{name}/{entry}"
            raise BadInput(f"aggregate takes the mean of {full!r}, which is {dtype}: send it as .float(), or use sum")
    if len(weights) != count:
        raise BadInput(f"aggregate takes the mean of {name!r} with {len(weights)} weights for {count} replies")
    if count and not math.fsum(weights) > 0:
        raise BadInput(f"aggregate takes the mean of {name!r} with weights whose sum is not positive: {list(weights)}")
