"""Whether numbers are finite, with few passes over them and one wait for a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from fedhead.core.tree import Tree


def all_finite(trees: Iterable[Tree]) -> bool:
    """Return whether all numbers of all trees are finite: the largest of each tensor decides.

    What a stack of clients has computed is looked at as a whole first, since thousands of small tensors take a GPU's
    host much longer; on a CPU only where it has no clients of other runs. A GPU is synchronized once per dtype.
    """
    tensors = [t for tree in trees for t in tree.tensors() if (t.is_floating_point() or t.is_complex()) and t.numel()]
    parts_of = (t if t._base is None or t._base.dtype != t.dtype else t._base for t in tensors)
    wholes = {id(whole): whole for whole in parts_of}
    ours = sum(t.numel() for t in tensors) >= sum(t.numel() for t in wholes.values() if t.device.type == "cpu")
    if len(wholes) < len(tensors) and ours and _finite(list(wholes.values())):
        return True
    return _finite(tensors)  # what a tensor is a part of may hold other numbers, which do not count


def _finite(tensors: list[Tensor]) -> bool:
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault((t.dtype, t.device), []).append(t)
    # On a CPU squares take a sixth of the time; their sum may overflow, then the largest numbers decide.
    doubtful = [same for (_, on), same in kinds.items() if on.type != "cpu" or not _bounded(same, 2)]
    return all(_bounded(same, math.inf) for same in doubtful)


def _bounded(tensors: list[Tensor], order: float) -> bool:
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(tensors, ord=order))).all())
