"""Packing of tensors into one buffer per dtype: one copy between host and device instead of thousands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedhead.core.tree.foreach import by_dtype
from fedhead.core.tree.tree import Tree
from fedhead.core.tree.tree_rows import StackedTrees

Buffers = dict[torch.dtype, Tensor]


class PackedTree(NamedTuple):
    """Tree stored in buffers.

    Args:
        buffers: One buffer per dtype.
        form: Tree of the same names, shapes and dtypes; its values are ignored.
    """

    buffers: Buffers
    form: Tree

    def tree(self) -> Tree:
        """Return the tree; its tensors are views of the buffers."""
        tensors = unpack(self.buffers, self.form.tensors())
        return self.form.map(lambda t: next(tensors))


def pack_tree(tree: Tree) -> PackedTree:
    """Pack a tree into buffers; the buffer of a single tensor may share its memory."""
    return PackedTree(pack(tree.tensors()), tree.map(lambda t: _form(t.shape, t.dtype)))


def pack_rows(trees: StackedTrees) -> list[PackedTree]:
    """Pack each tree into buffers that are rows of one shared buffer.

    Args:
        trees: Trees with at least one tensor.

    >>> trees = StackedTrees(Tree(w=torch.arange(6.0).reshape(3, 2), n=torch.tensor([1.0, 2.0, 3.0])), rows=[2, 0])
    >>> [dict(packed.tree()) for packed in pack_rows(trees)]
    [{'w': tensor([4., 5.]), 'n': tensor(3.)}, {'w': tensor([0., 1.]), 'n': tensor(1.)}]
    """
    kinds = {
        kind: torch.cat([t.reshape(len(t), math.prod(t.shape[1:])) for t in parts], 1)
        for kind, parts in by_dtype(trees.stacked.tensors()).items()
    }
    form = trees.stacked.map(lambda t: _form(t.shape[1:], t.dtype))
    return [PackedTree({kind: t[row] for kind, t in kinds.items()}, form) for row in trees.rows]


def _form(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a meta tensor, which takes no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def pack(tensors: Iterable[Tensor]) -> Buffers:
    """Pack tensors into one buffer per dtype; the buffer of a single tensor may share its memory.

    Args:
        tensors: Tensors on one device.
    """
    return {kind: torch._C._nn.flatten_dense_tensors(parts) for kind, parts in by_dtype(tensors).items()}


def unpack(buffers: Buffers, like: Iterable[Tensor]) -> Iterator[Tensor]:
    """Return views of the packed tensors.

    Args:
        buffers: Result of `pack`, or a copy of it.
        like: Tensors of the packed shapes and dtypes, in the same order.

    >>> a, b = torch.arange(4.0).reshape(2, 2), torch.tensor(True)
    >>> list(unpack(pack([a, b]), [a, b]))
    [tensor([[0., 1.],
            [2., 3.]]), tensor(True)]
    """
    like = list(like)
    # one call for all tensors, since a round has thousands of them
    views = {
        kind: iter(torch._C._nn.unflatten_dense_tensors(buffers[kind], parts)) for kind, parts in by_dtype(like).items()
    }
    # torch loses the shape of a tensor without elements
    return (next(views[t.dtype]) if t.numel() else next(views[t.dtype]).reshape(t.shape) for t in like)
