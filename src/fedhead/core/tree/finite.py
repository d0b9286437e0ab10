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
    """Asynchronous check that all numbers of trees are finite; `result` synchronizes.

    Rows of a stack are checked through the whole stack first, since launching kernels for thousands of small tensors is
    slow. On a CPU only if the stack has no rows of other runs. A GPU is synchronized once per dtype.

    Args:
        trees: Trees whose tensors must not change before `result` is called.
    """

    def __init__(self, trees: Iterable[Tree]):
        self._tensors = [t for tree in trees for t in tree.tensors() if _is_inexact(t) and t.numel()]
        parts_of = (t if t._base is None or t._base.dtype != t.dtype else t._base for t in self._tensors)
        wholes = {id(whole): whole for whole in parts_of}
        all_of_cpu = sum(t.numel() for t in wholes.values() if t.device.type == "cpu")
        complete = sum(t.numel() for t in self._tensors) >= all_of_cpu
        self._joined = len(wholes) < len(self._tensors) and complete
        self._kinds = _by_kind(wholes.values() if self._joined else self._tensors)
        self._largest = {kind: _norms(same, math.inf) for kind, same in self._kinds.items() if kind[1].type != "cpu"}
        self._result: bool | None = None

    def result(self) -> bool:
        """Return whether all numbers are finite; the first call synchronizes with the GPU."""
        if self._result is None:
            finite = all(
                _are_finite(self._largest[kind]) if kind in self._largest else _finite_on_cpu(same)
                for kind, same in self._kinds.items()
            )
            if not finite and self._joined:  # the non-finite numbers may be in other rows of the stack
                kinds = _by_kind(self._tensors)
                finite = all(_are_finite(_norms(same, math.inf)) for same in kinds.values())
            self._result = finite
            self._tensors, self._kinds, self._largest = [], {}, {}
        return self._result


def _is_inexact(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _by_kind(tensors: Iterable[Tensor]) -> Kinds:
    kinds: Kinds = {}
    for t in tensors:
        kinds.setdefault((t.dtype, t.device), []).append(t)
    return kinds


def _finite_on_cpu(tensors: list[Tensor]) -> bool:
    """Check the sum of squares, six times as fast on a CPU; if it overflows, check the maximum."""
    return _are_finite(_norms(tensors, 2)) or _are_finite(_norms(tensors, math.inf))


def _norms(tensors: list[Tensor], order: float) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors, ord=order))


def _are_finite(norms: Tensor) -> bool:
    return all(map(math.isfinite, norms.tolist()))
