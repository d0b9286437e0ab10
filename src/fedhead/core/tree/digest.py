"""Digests of named tensors, by which a change of a single number is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest_of(tensors: Mapping[str, Tensor], size: int = 8) -> str:
    """Return a digest of names, shapes, types and numbers, in whatever order the tensors come.

    Args:
        tensors: Tensors by name.
        size: Bytes of the digest.

    >>> digest_of({"a": torch.zeros(2)}) == digest_of({"a": torch.zeros(3)})
    False
    """
    total = hashlib.blake2b(digest_size=size)
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()
