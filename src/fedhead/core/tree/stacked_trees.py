"""Trees as rows of one stacked tree: a mean over clients is then one operation per tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import overload

import torch
from torch import Tensor

from fedhead.core.tree.schema import Schema
from fedhead.core.tree.transfer import to_device
from fedhead.core.tree.tree import Tree, unstack


class StackedTrees(Sequence[Tree]):
    """Trees of one form, of which single ones are only made when they are asked for.

    Args:
        stacked: Their tensors, with a leading axis.
        rows: The row of each tree along that axis.

    >>> trees = StackedTrees(Tree(w=torch.tensor([[1.0], [2.0], [4.0]])), rows=[0, 2])
    >>> trees[1], trees.map_rows(lambda rows: rows.sum(0))
    ({'w': tensor([4.])}, {'w': tensor([5.])})
    """

    def __init__(self, stacked: Tree, rows: Sequence[int]):
        self.stacked = stacked
        self.rows = rows

    @cached_property
    def _trees(self) -> list[Tree]:
        count = max(self.rows, default=-1) + 1
        if 2 * len(self.rows) < count:
            return [self.stacked.map(itemgetter(row)) for row in self.rows]
        each = unstack(self.stacked, count)
        return [each[row] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Tree: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tree]: ...
    def __getitem__(self, place: int | slice) -> Tree | list[Tree]:
        return self._trees[place]

    def take(self, places: Sequence[int]) -> StackedTrees:
        """Return some of the trees.

        Args:
            places: Their places among these.
        """
        return StackedTrees(self.stacked, [self.rows[place] for place in places])

    def copied_rows(self) -> Tree:
        """Return all trees stacked in their order, with their own memory."""
        return self.stacked.map(self._selector())

    def under(self, name: str) -> StackedTrees:
        """Return the trees that these have under a name; a tensor becomes a tree with the one entry `value`."""
        found = self.stacked[name]
        return StackedTrees(found if isinstance(found, Tree) else Tree(value=found), self.rows)

    def map_rows(self, fn: Callable[[Tensor], Tensor]) -> Tree:
        """Apply a function to every tensor with the trees' rows in their order, as `torch.stack` makes it of them."""
        select, count = self._selector(), len(self.rows)
        in_order = list(self.rows) == list(range(count))
        return self.stacked.map(lambda t: fn(t.contiguous() if in_order and len(t) == count else select(t)))

    def _selector(self) -> Callable[[Tensor], Tensor]:
        places = dict[torch.device, Tensor]()

        def select(t: Tensor) -> Tensor:
            if t.device not in places:
                places[t.device] = to_device(self.rows, t.device)
            return t.index_select(0, places[t.device])

        return select

    @property
    def nbytes(self) -> int:
        """Size of the tensors of all trees in bytes."""
        return sum(t.nbytes // len(t) for t in self.stacked.tensors()) * len(self)

    def schema(self) -> Schema:
        """Return the shape and dtype of every tensor of a single tree, by full name."""
        return {name: (tuple(t.shape[1:]), t.dtype) for name, t in self.stacked.leaves().items()}


def with_own_rows(stacked: Tree) -> Tree:
    """Return a stacked tree whose rows share memory neither with each other nor with what was there before.

    What is the same for all clients, such as the model that they have received, comes out of vmap as a single row that
    stands for all of them, and out of a stack of one client as the very tensor.

    Args:
        stacked: What vmap has returned.

    >>> one = Tree(w=torch.zeros(2).expand(3, 2))
    >>> with_own_rows(one)["w"].stride()
    (2, 1)
    """
    return stacked.map(lambda t: t.clone(memory_format=torch.contiguous_format) if _is_one_row(t) else t)


def _is_one_row(t: Tensor) -> bool:
    return len(t) == 1 or t.stride(0) == 0
