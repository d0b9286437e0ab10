"""Copies, clones and zeros of many tensors with few kernels.

A model of a hundred layers has hundreds of small tensors, and each kernel launch takes microseconds. Torch's `_foreach`
operations launch one kernel for many tensors only if all have the same dtype and each pair has the same layout.
Otherwise they launch one kernel per tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch._C import _functorch


def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first; a tensor paired with itself is skipped.

    >>> a, b = torch.zeros(2), torch.ones(2)
    >>> copy_all([(a, b)])
    >>> a.tolist()
    [1.0, 1.0]
    """
    kinds: dict[tuple[torch.dtype, bool], list[tuple[Tensor, Tensor]]] = {}
    for to, source in pairs:
        if to is not source:
            same_layout = to.dtype == source.dtype and to.stride() == source.stride()
            kinds.setdefault((to.dtype, same_layout), []).append((to, source))
    for same in kinds.values():
        torch._foreach_copy_([to for to, _ in same], [source for _, source in same])


def clone_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Clone tensors, with the same layouts."""
    if not _are_fused(tensors):
        return [t.clone() for t in tensors]
    clones = [torch.empty_like(t) for t in tensors]
    copy_all(zip(clones, tensors, strict=True))
    return clones


def zeros_like_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return zeros of the same shapes, dtypes and layouts."""
    if not _are_fused(tensors):
        return [torch.zeros_like(t) for t in tensors]
    zeros = [torch.empty_like(t) for t in tensors]
    for same in by_dtype(zeros).values():
        torch._foreach_zero_(same)
    return zeros


def by_dtype(tensors: Iterable[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """Group tensors by their dtype."""
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault(t.dtype, []).append(t)
    return kinds


def _are_fused(tensors: Sequence[Tensor]) -> bool:
    """Return whether `_foreach` operations save kernels: on a GPU, outside autograd and vmap."""
    return all(
        t.device.type == "cuda" and not t.requires_grad and not _functorch.is_functorch_wrapped_tensor(t)
        for t in tensors
    )
