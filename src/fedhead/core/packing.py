"""Tensors of one dtype packed into one buffer: one copy between host and device instead of thousands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

Buffers = dict[torch.dtype, Tensor]


def pack(tensors: Iterable[Tensor]) -> Buffers:
    """Return the numbers of tensors, one buffer per dtype; that of a single tensor may share its memory.

    Args:
        tensors: Tensors on one device.
    """
    return {kind: torch._C._nn.flatten_dense_tensors(parts) for kind, parts in _by_dtype(tensors).items()}


def unpack(buffers: Buffers, like: Iterable[Tensor]) -> Iterator[Tensor]:
    """Return the tensors whose numbers lie in buffers, as views of them.

    Args:
        buffers: What `pack` returned, or a copy of it.
        like: Tensors of the shapes and dtypes that were packed, in the same order.

    >>> a, b = torch.arange(4.0).reshape(2, 2), torch.tensor(True)
    >>> list(unpack(pack([a, b]), [a, b]))
    [tensor([[0., 1.],
            [2., 3.]]), tensor(True)]
    """
    like = list(like)
    # one call for all tensors: there are thousands of them in a round
    views = {
        kind: iter(torch._C._nn.unflatten_dense_tensors(buffers[kind], parts))
        for kind, parts in _by_dtype(like).items()
    }
    # torch does not keep the shape of a tensor without elements
    return (next(views[t.dtype]) if t.numel() else next(views[t.dtype]).reshape(t.shape) for t in like)


def _by_dtype(tensors: Iterable[Tensor]) -> dict[torch.dtype, list[Tensor]]:
    kinds: dict[torch.dtype, list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault(t.dtype, []).append(t)
    return kinds
