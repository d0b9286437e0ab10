"""What servers of several runs compute at once: the means of their replies, and whether numbers are finite."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedhead.core.finite import all_finite
from fedhead.core.schema import schema
from fedhead.core.tree import Tree, unstack
from fedhead.core.tree_mean import tree_mean

MEMORY = 1 << 30  # bytes of the replies that are averaged at once


class Weighted(NamedTuple):
    """Trees with their weights, which have a positive sum."""

    trees: list[Tree]
    weights: list[float]

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return len(self.trees) * self.trees[0].nbytes


def means(items: list[Weighted]) -> list[Tree]:
    """Return the weighted mean of each item, up to rounding as `tree_mean` does."""
    groups: dict[Any, list[int]] = {}
    for place, item in enumerate(items):
        groups.setdefault((len(item.trees), tuple(schema(item.trees[0]).items())), []).append(place)
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

    def average(*rows: Tensor) -> Tensor:
        first = rows[0]
        kind = (first.dtype, first.device)
        if kind not in on:
            on[kind] = shares.to(device=first.device, dtype=first.dtype).unsqueeze(1)
        stacked = torch.stack(rows).reshape(*shares.shape, first.numel())
        return torch.bmm(on[kind], stacked).reshape(len(items), *first.shape)

    first, *others = [tree for item in items for tree in item.trees]
    return unstack(first.map(average, *others), len(items))


def finite(items: list[Tree]) -> list[bool]:
    """Return whether all numbers of each tree are finite."""
    return [True] * len(items) if all_finite(items) else [all_finite([item]) for item in items]
