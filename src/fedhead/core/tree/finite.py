"""Checks of finiteness with a single device synchronization."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fedhead.core.tree.tree import Tree

Kinds = dict[tuple[torch.dtype, torch.device], list[Tensor]]


def all_finite(trees: Iterable[Tree]) -> bool:
    """Return whether all numbers of all trees are finite: the largest of each tensor decides."""
    return FiniteCheck(trees).result()


class FiniteCheck:
    """Asynchronous check that all numbers of trees are finite; `result` synchronizes.

    What a stack of clients has computed is looked at as a whole first, since thousands of small tensors take a GPU's
    host much longer; on a CPU only where it has no clients of other runs. A GPU is waited for once per dtype.

    Args:
        trees: The trees, whose tensors must not change until `result` was asked for.
    """

    def __init__(self, trees: Iterable[Tree]):
        self._tensors = [t for tree in trees for t in tree.tensors() if _is_inexact(t) and t.numel()]
        parts_of = (t if t._base is None or t._base.dtype != t.dtype else t._base for t in self._tensors)
        wholes = {id(whole): whole for whole in parts_of}
        all_of_cpu = sum(t.numel() for t in wholes.values() if t.device.type == "cpu")
        ours = sum(t.numel() for t in self._tensors) >= all_of_cpu
        self._joined = len(wholes) < len(self._tensors) and ours
        self._kinds = _by_kind(wholes.values() if self._joined else self._tensors)
        self._largest = {kind: _norms(same, math.inf) for kind, same in self._kinds.items() if kind[1].type != "cpu"}
        self._result: bool | None = None

    def result(self) -> bool:
        """Return whether all numbers are finite; the first time, a GPU is waited for."""
        if self._result is None:
            found = all(
                _are_finite(self._largest[kind]) if kind in self._largest else _finite_on_cpu(same)
                for kind, same in self._kinds.items()
            )
            if not found and self._joined:  # what a tensor is a part of may hold other numbers, which do not count
                kinds = _by_kind(self._tensors)
                found = all(_are_finite(_norms(same, math.inf)) for same in kinds.values())
            self._result = found
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
    """On a CPU squares take a sixth of the time; their sum may overflow, then the largest numbers decide."""
    return _are_finite(_norms(tensors, 2)) or _are_finite(_norms(tensors, math.inf))


def _norms(tensors: list[Tensor], order: float) -> Tensor:
    return torch.stack(torch._foreach_norm(tensors, ord=order))


def _are_finite(norms: Tensor) -> bool:
    return all(map(math.isfinite, norms.tolist()))
