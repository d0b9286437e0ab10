"""Digests of texts, JSON values and named tensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def digest_text(text: str, size: int = 8) -> str:
    """Return a digest of a text.

    Args:
        text: Text to digest.
        size: Bytes of the digest.
    """
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def digest_json(value: Any, size: int = 8) -> str:
    """Return a digest of a value as JSON, independent of the order of keys; other objects are converted with `str`.

    >>> digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    True
    """
    return digest_text(json.dumps(value, sort_keys=True, default=str), size)


def digest_of(tensors: Mapping[str, Tensor], size: int = 8) -> str:
    """Return a digest of names, shapes, dtypes and values of tensors, independent of their order.

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
