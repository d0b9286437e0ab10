"""What servers of several runs compute at once: the means of their replies, and whether numbers are finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedhead.core.tree.finite import all_finite
from fedhead.core.tree.schema import schema
from fedhead.core.tree.stacked_trees import StackedTrees
from fedhead.core.tree.tree import Tree, unstack
from fedhead.core.tree.tree_mean import tree_mean

MEMORY = 1 << 30  # bytes of the replies that are averaged at once


class Weighted(NamedTuple):
    """Trees with their weights, which have a positive sum."""

    trees: Sequence[Tree]
    weights: list[float]

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        stack = self.trees
        return stack.nbytes if isinstance(stack, StackedTrees) else len(stack) * stack[0].nbytes

    @property
    def form(self) -> tuple[Any, ...]:
        """What trees that are averaged at once have in common: their number, names, shapes and types, and the stack."""
        stack = self.trees
        known = stack.schema() if isinstance(stack, StackedTrees) else schema(stack[0])
        tensors = tuple(map(id, stack.stacked.tensors())) if isinstance(stack, StackedTrees) else ()
        return len(stack), tuple(known.items()), tensors


def means(items: list[Weighted]) -> list[Tree]:
    """Return the weighted mean of each item, up to rounding as `tree_mean` does."""
    groups: dict[Any, list[int]] = {}
    for place, item in enumerate(items):
        groups.setdefault(item.form, []).append(place)
    found: dict[int, Tree] = {}
    for places in groups.values():
        size = max(1, MEMORY // max(items[places[0]].nbytes, 1))
        for begin in range(0, len(places), size):
            part = places[begin : begin + size]
            found.update(zip(part, _means([items[place] for place in part]), strict=True))
    return [found[place] for place in range(len(items))]


def _means(items: list[Weighted]) -> list[Tree]:
    if len(items) == 1:
        return [tree_mean(*items[0])]
    shares = torch.tensor([[w / math.fsum(item.weights) for w in item.weights] for item in items], dtype=torch.float64)
    on: dict[tuple[torch.dtype, torch.device], Tensor] = {}  # copied to a GPU only once

    def average(rows: Tensor) -> Tensor:
        kind = (rows.dtype, rows.device)
        if kind not in on:
            on[kind] = shares.to(device=rows.device, dtype=rows.dtype).unsqueeze(1)
        stacked = rows.reshape(*shares.shape, rows[0].numel())
        return torch.bmm(on[kind], stacked).reshape(len(items), *rows.shape[1:])

    if (every := StackedTrees.joined([item.trees for item in items])) is not None:
        return unstack(every.map_rows(average), len(items))
    first, *others = [tree for item in items for tree in item.trees]
    return unstack(first.map(lambda *rows: average(torch.stack(rows)), *others), len(items))


def finite(items: list[Tree]) -> list[bool]:
    """Return whether all numbers of each tree are finite."""
    return [True] * len(items) if all_finite(items) else [all_finite([item]) for item in items]
