"""Many tensors copied, cloned or set to zero with few kernels.

A model of a hundred layers has hundreds of small tensors, and on a GPU a kernel takes microseconds however small its
tensor is. Torch's `_foreach` operations take one kernel for many tensors, but only where all have one dtype and each
pair one layout; otherwise they take one kernel for each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch._C import _functorch


def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Overwrite the first tensor of each pair with the second; a tensor that is paired with itself is left.

    >>> a, b = torch.zeros(2), torch.ones(2)
    >>> copy_all([(a, b)])
    >>> a.tolist()
    [1.0, 1.0]
    """
    kinds: dict[tuple[torch.dtype, bool], list[tuple[Tensor, Tensor]]] = {}
    for to, source in pairs:
        if to is not source:
            alike = to.dtype == source.dtype and to.stride() == source.stride()
            kinds.setdefault((to.dtype, alike), []).append((to, source))
    for same in kinds.values():
        torch._foreach_copy_([to for to, _ in same], [source for _, source in same])


def clone_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies that share no memory, with the layout of the originals."""
    if not _are_fused(tensors):
        return [t.clone() for t in tensors]
    made = [torch.empty_like(t) for t in tensors]
    copy_all(zip(made, tensors, strict=True))
    return made


def zeros_like_all(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return zeros of the same shapes, dtypes and layouts."""
    if not _are_fused(tensors):
        return [torch.zeros_like(t) for t in tensors]
    made = [torch.empty_like(t) for t in tensors]
    for same in by_dtype(made).values():
        torch._foreach_zero_(same)
    return made


def by_dtype(tensors: Iterable[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    """Group tensors by their dtype."""
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault(t.dtype, []).append(t)
    return kinds


def _are_fused(tensors: Sequence[Tensor]) -> bool:
    """Return whether kernels are saved: on a GPU, where neither autograd nor vmap watches the tensors."""
    return all(
        t.device.type == "cuda" and not t.requires_grad and not _functorch.is_functorch_wrapped_tensor(t)
        for t in tensors
    )
