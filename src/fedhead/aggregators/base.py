"""Aggregators, which replace the weighted mean of the clients' updates.

An update is the difference between a client's reply and the server's entry of the same name. All clients have equal
weights, because the server can't verify the number of samples that a client reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedhead.core.components.component import Component
from fedhead.core.components.ranges import AtLeast
from fedhead.core.components.registry import Registry
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import tree_mean


@dataclass(frozen=True)
class Aggregator(Component):
    """Base class of rules that combine the updates of a round, some of which may be hostile.

    Attributes:
        remembers: Whether `combine` receives its result of the previous round.
        mixing: f, number of hostile clients that nearest-neighbour mixing expects. Updates are mixed before `combine`.
    """

    remembers: ClassVar[bool] = False
    mixing: Annotated[int, AtLeast(0)] = field(default=0, kw_only=True)  # f of nearest-neighbour mixing; 0: no mixing

    def __call__(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Mix the updates if asked to, then combine them; see `combine` for the arguments."""
        return self.combine(mixed(updates, self.mixing) if self.mixing else updates, previous)

    def quorum(self) -> int:
        """Return the minimum number of updates that the rule and mixing need.

        Returns:
            `min_clients()`, or 2f + 1 if that is more: mixing needs an honest majority.
        """
        return max(self.min_clients(), 2 * self.mixing + 1)

    def min_clients(self) -> int:
        """Return the minimum number of updates that the rule needs.

        Returns:
            Number of clients; a round with fewer replies is not aggregated.
        """
        return 1

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Combine the clients' updates into one; pure.

        Args:
            updates: Update of each client, at least `min_clients()` of them, all with the same names. Models are
                `Weights`: `sq`, `dot` and `vector` leave out BatchNorm's running statistics.
            previous: Result of the previous round, if the rule `remembers`; None in the first round.

        Returns:
            Combined update with the same names.
        """
        raise NotImplementedError


AGGREGATORS = Registry.of(Aggregator, home=["fedhead.aggregators"], needs=["combine"])
"""Registry of aggregators."""
aggregator = AGGREGATORS.decorator
"""Decorator that registers a subclass of `Aggregator` under a name, for recipes and the command line."""


def inner_products(updates: Sequence[Tree]) -> Tensor:
    """Return ⟨x_i, x_j⟩ of all pairs [K, K], in double precision so that hostile numbers don't overflow.

    Only parameters count. BatchNorm's running statistics are left out: they have other units, and they differ between
    honest clients whose inputs differ.
    """
    total: Tensor | None = None
    for tensors in zip(*(update.vector().values() for update in updates), strict=True):
        rows = torch.stack([t.flatten() for t in tensors]).double()
        product = rows @ rows.T
        total = product if total is None else total + product
    return torch.zeros(len(updates), len(updates), dtype=torch.float64) if total is None else total


def squared_distances(products: Tensor) -> Tensor:
    """Return ‖x_i − x_j‖² of all pairs [K, K], from their inner products."""
    squares = products.diagonal()
    distances = (squares[:, None] + squares[None, :] - 2 * products).clamp_min(0)
    return distances.fill_diagonal_(0)


def mixed(updates: Sequence[Tree], hostile: int) -> list[Tree]:
    """Replace each update by the mean of the K − f updates that are nearest to it, itself included.

    Nearest-neighbour mixing (NNM; Allouah et al., 2023).

    Args:
        updates: Updates of K clients.
        hostile: f, number of hostile clients.
    """
    order = squared_distances(inner_products(updates)).argsort(dim=1, stable=True)
    nearest = [sorted(row[: len(updates) - hostile]) for row in order.tolist()]
    return [tree_mean([updates[i] for i in row], [1.0] * len(row)) for row in nearest]
