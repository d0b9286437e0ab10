"""The weighted mean of trees, be they single ones or rows of one stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedhead.core.tree.stacked_trees import StackedTrees
from fedhead.core.tree.transfer import to_device
from fedhead.core.tree.tree import Tree


def tree_mean(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """Return the weighted mean of trees; those of one stack are not taken apart, and give the same bit for bit.

    Args:
        trees: Trees with the same names.
        weights: One weight per tree, with a positive sum; they need not sum to 1.

    Raises:
        ValueError: If the weights do not have a positive sum.

    >>> tree_mean([Tree(w=torch.tensor([1.0])), Tree(w=torch.tensor([4.0]))], [1.0, 2.0])
    {'w': tensor([3.])}
    """
    average = _row_average(weights)
    if isinstance(trees, StackedTrees):
        return trees.map_rows(average)
    return trees[0].map(lambda *rows: average(torch.stack(rows)), *trees[1:])


def _row_average(weights: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """Return the function that computes the weighted mean of the rows of a tensor."""
    total = math.fsum(weights)
    if not total > 0:
        raise ValueError(f"a weighted mean needs weights with a positive sum, not {total}")

    shares: dict[tuple[torch.dtype, torch.device], Tensor] = {}  # copied to a GPU only once

    def average(rows: Tensor) -> Tensor:
        kind = (rows.dtype, rows.device)
        if kind not in shares:
            shares[kind] = to_device([w / total for w in weights], rows.device, rows.dtype)
        # as torch.tensordot computes it, with fewer calls
        if rows.numel() == len(rows):
            return torch.dot(shares[kind], rows.reshape(-1)).reshape(rows.shape[1:])
        return torch.mm(shares[kind][None], rows.reshape(len(rows), -1)).reshape(rows.shape[1:])

    return average
