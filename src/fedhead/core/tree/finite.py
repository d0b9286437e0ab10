"""Checks of finiteness with a single device synchronization."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fedhead.core.tree.tree import Tree

Kinds = dict[tuple[torch.dtype, torch.device], list[Tensor]]


def all_finite(trees: Iterable[Tree]) -> bool:
    """Return whether all numbers of all trees are finite, by the maximum of each tensor."""
    return FiniteCheck(trees).result()


class FiniteCheck:
    """Asynchronous check that all numbers of trees are finite; `result` synchronizes a GPU once per dtype.

    Args:
        trees: Trees whose tensors must not change before `result` is called.
    """

    def __init__(self, trees: Iterable[Tree]):
        self._kinds: Kinds = {}
        for t in (t for tree in trees for t in tree.tensors()):
            if (t.is_floating_point() or t.is_complex()) and t.numel():
                self._kinds.setdefault((t.dtype, t.device), []).append(t)
        self._largest = {kind: _norms(same, math.inf) for kind, same in self._kinds.items() if kind[1].type != "cpu"}
        self._result: bool | None = None

    def result(self) -> bool:
        """Return whether all numbers are finite; the first call synchronizes with the GPU."""
        if self._result is None:
            self._result = all(
                _are_finite(self._largest[kind]) if kind in self._largest else _finite_on_cpu(same)
                for kind, same in self._kinds.items()
            )
            self._kinds, self._largest = {}, {}
        return self._result


def _finite_on_cpu(tensors: list[Tensor]) -> bool:
    """Check the sum of squares, six times as fast on a CPU; if it overflows, check the maximum."""
    return _are_finite(_norms(tensors, 2)) or _are_finite(_norms(tensors, math.inf))


def _norms(tensors: list[Tensor], order: float) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors, ord=order))


def _are_finite(norms: Tensor) -> bool:
    return all(map(math.isfinite, norms.tolist()))
