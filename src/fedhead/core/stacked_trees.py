"""Trees as rows of one stacked tree: a sum over clients is then one operation per tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import overload

import torch
from torch import Tensor

from fedhead.core.schema import Schema
from fedhead.core.tree import Tree, mean, row_average, unstack


class StackedTrees(Sequence[Tree]):
    """Trees of one form, of which single ones are only made when they are asked for.

    Args:
        stacked: Their tensors, with a leading axis.
        rows: The row of each tree along that axis.

    >>> trees = StackedTrees(Tree(w=torch.tensor([[1.0], [2.0], [4.0]])), rows=[0, 2])
    >>> trees[1], trees.mean([1.0, 2.0])
    ({'w': tensor([4.])}, {'w': tensor([3.])})
    """

    def __init__(self, stacked: Tree, rows: Sequence[int]):
        self.stacked = stacked
        self.rows = rows

    @cached_property
    def _trees(self) -> list[Tree]:
        each = unstack(self.stacked, max(self.rows, default=-1) + 1)
        return [each[row] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Tree: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tree]: ...
    def __getitem__(self, place: int | slice) -> Tree | list[Tree]:
        return self._trees[place]

    def under(self, name: str) -> StackedTrees:
        """Return the trees that these have under a name; a tensor becomes a tree with the one entry `value`."""
        found = self.stacked[name]
        return StackedTrees(found if isinstance(found, Tree) else Tree(value=found), self.rows)

    def mean(self, weights: list[float]) -> Tree:
        """Return the weighted mean, bit for bit as `core.tree.mean` computes it of the single trees.

        Args:
            weights: One weight per tree, with a positive sum; they need not sum to 1.

        Raises:
            ValueError: If the weights do not have a positive sum.
        """
        average, places = row_average(weights), dict[torch.device, Tensor]()
        every = list(range(len(self.rows)))

        def ordered(t: Tensor) -> Tensor:
            """Return the trees' rows in their order, as `torch.stack` leaves them."""
            if list(self.rows) == every and len(t) == len(every):
                return t.contiguous()
            if t.device not in places:
                places[t.device] = torch.tensor(self.rows, device=t.device)
            return t.index_select(0, places[t.device])

        return self.stacked.map(lambda t: average(ordered(t)))

    @property
    def nbytes(self) -> int:
        """Size of the tensors of all trees in bytes."""
        return sum(t.nbytes // len(t) for t in self.stacked.tensors()) * len(self)

    def schema(self) -> Schema:
        """Return the shape and dtype of every tensor of a single tree, by full name."""
        return {name: (tuple(t.shape[1:]), t.dtype) for name, t in self.stacked.leaves().items()}


def weighted_mean(trees: Sequence[Tree], weights: list[float]) -> Tree:
    """Return the weighted mean of trees, of stacked ones without taking them apart; see `core.tree.mean`."""
    return trees.mean(weights) if isinstance(trees, StackedTrees) else mean(list(trees), weights)
