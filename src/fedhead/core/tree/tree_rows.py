"""Trees of several clients: a list, or rows of one stacked tree.

The mean over a stack of clients is one operation per tensor, without unstacking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import overload

import torch
from torch import Tensor

from fedhead.core.tree.schema import Schema, schema
from fedhead.core.tree.transfer import to_device
from fedhead.core.tree.tree import Tree, unstack


class TreeRows(Sequence[Tree]):
    """List of the trees of several clients.

    Args:
        trees: One tree per client.

    >>> trees = TreeRows([Tree(w=torch.tensor([1.0])), Tree(w=torch.tensor([4.0]))])
    >>> dict(trees.mean([1.0, 2.0]))
    {'w': tensor([3.])}
    """

    def __init__(self, trees: Sequence[Tree]):
        self._list = list(trees)

    @property
    def _trees(self) -> list[Tree]:
        return self._list

    def __len__(self) -> int:
        return len(self._trees)

    @overload
    def __getitem__(self, place: int) -> Tree: ...
    @overload
    def __getitem__(self, place: slice) -> list[Tree]: ...
    def __getitem__(self, place: int | slice) -> Tree | list[Tree]:
        return self._trees[place]

    def take(self, places: Sequence[int]) -> TreeRows:
        """Return some of the trees.

        Args:
            places: Positions of the trees.
        """
        return TreeRows([self._trees[place] for place in places])

    def under(self, name: str) -> TreeRows:
        """Return one entry of every tree; a tensor becomes a tree with the single entry `value`.

        Raises:
            KeyError: With the position of the first tree without this entry.
        """
        for place, tree in enumerate(self._trees):
            if name not in tree:
                raise KeyError(place)
        return TreeRows([_as_tree(tree[name]) for tree in self._trees])

    def holds_tensor(self, name: str) -> bool:
        """Return whether an entry is a tensor, not a tree."""
        return isinstance(self._trees[0][name], Tensor)

    def mean(self, weights: Sequence[float]) -> Tree:
        """Return the weighted mean; bit-identical for stacked and single trees.

        Args:
            weights: One weight per tree; they are normalized by their sum.

        Raises:
            ValueError: If the sum of the weights is not positive.
        """
        average = _row_average(weights)
        return self._trees[0].map(lambda *rows: average(torch.stack(rows)), *self._trees[1:])

    def schema(self) -> Schema | None:
        """Return the schema of a single tree; None if the trees differ."""
        first, *others = map(schema, self._trees)
        return first if all(other == first for other in others) else None

    def numbers(self, name: str) -> dict[int, float]:
        """Return the scalars of an entry, keyed by the position of their tree, with a single device synchronization."""
        tensors = {place: tree[name] for place, tree in enumerate(self._trees) if name in tree}
        return dict(zip(tensors, torch.stack(list(tensors.values())).tolist(), strict=True)) if tensors else {}

    @property
    def nbytes(self) -> int:
        """Size of the tensors of all trees in bytes."""
        return sum(tree.nbytes for tree in self._trees)


def as_rows(trees: Sequence[Tree]) -> TreeRows:
    """Convert trees to `TreeRows`."""
    return trees if isinstance(trees, TreeRows) else TreeRows(trees)


def tree_mean(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """Return the weighted mean of trees with the same names; see `TreeRows.mean`."""
    return as_rows(trees).mean(weights)


def _as_tree(value: Tree | Tensor) -> Tree:
    return value if isinstance(value, Tree) else Tree(value=value)


class StackedTrees(TreeRows):
    """Trees of one schema, stored stacked and unstacked lazily.

    Args:
        stacked: Tree of tensors with a leading axis.
        rows: Row of each tree along that axis.

    >>> trees = StackedTrees(Tree(w=torch.tensor([[1.0], [2.0], [4.0]])), rows=[0, 2])
    >>> dict(trees[1]), dict(trees.mean([1.0, 1.0]))
    ({'w': tensor([4.])}, {'w': tensor([2.5000])})
    """

    def __init__(self, stacked: Tree, rows: Sequence[int]):
        self.stacked = stacked
        self.rows = rows

    @cached_property
    def _trees(self) -> list[Tree]:
        count = max(self.rows, default=-1) + 1
        if 2 * len(self.rows) < count:
            return [self.stacked.map(itemgetter(row)) for row in self.rows]
        trees = unstack(self.stacked, count)
        return [trees[row] for row in self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Sequence[int]) -> StackedTrees:
        """Return some of the trees."""
        return StackedTrees(self.stacked, [self.rows[place] for place in places])

    def copied_rows(self) -> Tree:
        """Return a copy of the stack in the order of the trees."""
        return self.stacked.map(self._selector())

    def under(self, name: str) -> TreeRows:
        """Return one entry of every tree, as rows of one stack."""
        if name not in self.stacked:
            raise KeyError(0)
        return StackedTrees(_as_tree(self.stacked[name]), self.rows)

    def holds_tensor(self, name: str) -> bool:
        """Return whether an entry is a tensor, not a tree."""
        return isinstance(self.stacked[name], Tensor)

    def mean(self, weights: Sequence[float]) -> Tree:
        """Return the weighted mean."""
        average, select, count = _row_average(weights), self._selector(), len(self.rows)
        in_order = list(self.rows) == list(range(count))
        return self.stacked.map(lambda t: average(t.contiguous() if in_order and len(t) == count else select(t)))

    def _selector(self) -> Callable[[Tensor], Tensor]:
        places = dict[torch.device, Tensor]()

        def select(t: Tensor) -> Tensor:
            if t.device not in places:
                places[t.device] = to_device(self.rows, t.device)
            return t.index_select(0, places[t.device])

        return select

    def schema(self) -> Schema | None:
        """Return the schema of a single tree."""
        return {name: (tuple(t.shape[1:]), t.dtype) for name, t in self.stacked.leaves().items()}

    def numbers(self, name: str) -> dict[int, float]:
        """Return the scalars of an entry, keyed by the position of their tree, with a single device synchronization."""
        if name not in self.stacked:
            return {}
        values = self.stacked[name].tolist()
        return {place: values[row] for place, row in enumerate(self.rows)}

    @property
    def nbytes(self) -> int:
        """Size of the tensors of all trees in bytes."""
        return sum(t.nbytes // len(t) for t in self.stacked.tensors()) * len(self)


def with_own_rows(stacked: Tree) -> Tree:
    """Return a stacked tree whose rows share no memory with each other or with the inputs of vmap.

    A tensor that is equal for all clients, such as the received model, is returned by vmap as one expanded row; with a
    stack of one client, as the input tensor itself.

    Args:
        stacked: Result of vmap.

    >>> expanded = Tree(w=torch.zeros(2).expand(3, 2))
    >>> with_own_rows(expanded)["w"].stride()
    (2, 1)
    """
    return stacked.map(lambda t: t.clone(memory_format=torch.contiguous_format) if _is_one_row(t) else t)


def _is_one_row(t: Tensor) -> bool:
    return len(t) == 1 or t.stride(0) == 0


def _row_average(weights: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the weighted mean of the rows of a tensor."""
    total = math.fsum(weights)
    if not total > 0:
        raise ValueError(f"a weighted mean needs weights with a positive sum, not {total}")

    shares: dict[tuple[torch.dtype, torch.device], Tensor] = {}  # cache, to copy to a GPU once

    def average(rows: Tensor) -> Tensor:
        kind = (rows.dtype, rows.device)
        if kind not in shares:
            shares[kind] = to_device([w / total for w in weights], rows.device, rows.dtype)
        # same computation as torch.tensordot, with fewer calls
        if rows.numel() == len(rows):
            return torch.dot(shares[kind], rows.reshape(-1)).reshape(rows.shape[1:])
        return torch.mm(shares[kind][None], rows.reshape(len(rows), -1)).reshape(rows.shape[1:])

    return average
