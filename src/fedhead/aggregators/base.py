"""Aggregators: replacements of the weighted mean of the clients' updates.

An update is what a client sent less what the server holds under the same name. Every client counts alike: its number
of samples is only what it says of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedhead.core.components.component import Component
from fedhead.core.components.registry import Registry
from fedhead.core.tree.tree import Tree


@dataclass(frozen=True)
class Aggregator(Component):
    """A rule that makes one update of those of a round's clients, some of which may be hostile.

    Attributes:
        remembers: Whether `combine` is given its own result of the round before.
    """

    remembers: ClassVar[bool] = False

    def min_clients(self) -> int:
        """Return the smallest number of updates that the rule is defined for.

        Returns:
            A number of clients; a round with fewer replies does not count.
        """
        return 1

    def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
        """Return one update for all; pure.

        Args:
            updates: One update per client, at least `min_clients()` of them, all with the same names.
            previous: What `combine` returned in the round before, if the rule `remembers`; None in the first round.

        Returns:
            An update with the same names.
        """
        raise NotImplementedError


AGGREGATORS = Registry.of(Aggregator, home=["fedhead.aggregators"], needs=["combine"])
"""The aggregators by name."""
aggregator = AGGREGATORS.decorator
"""Register an aggregator under a name, for recipes and the command line: a decorator of subclasses of `Aggregator`."""


def inner_products(updates: Sequence[Tree]) -> Tensor:
    """Return ⟨x_i, x_j⟩ of all pairs [K, K], in double precision: squares of hostile numbers overflow others."""
    total: Tensor | None = None
    for tensors in zip(*(update.leaves().values() for update in updates), strict=True):
        rows = torch.stack([t.flatten() for t in tensors]).double()
        product = rows @ rows.T
        total = product if total is None else total + product
    return torch.zeros(len(updates), len(updates), dtype=torch.float64) if total is None else total


def squared_distances(products: Tensor) -> Tensor:
    """Return ‖x_i − x_j‖² of all pairs [K, K], from their inner products."""
    squares = products.diagonal()
    found = (squares[:, None] + squares[None, :] - 2 * products).clamp_min(0)
    return found.fill_diagonal_(0)
