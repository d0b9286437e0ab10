"""Random numbers by key: a hash instead of a generator, so that every executor and machine draws the same numbers.

A number depends only on its key and its position, never on earlier draws. The same splitmix64 finalizer is implemented
for numpy (batch orders, on the host) and for torch (augmentation and dropout, inside a captured or vectorized step).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN, _M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(*path: int | str) -> int:
    """Derive a 63-bit key from a path such as (seed, "order", round, client), stable across machines and versions.

    >>> key(0, "order", 3) == key(0, "order", 3) != key(0, "order", 4)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(path).encode(), digest_size=8).digest(), "little") >> 1


def permutation(key: int, n: int) -> NDArray[np.int64]:
    """Return a random permutation of 0 … n-1."""
    first: NDArray[np.int64] = permutations([key], n)[0]
    return first


def permutations(keys: Sequence[int], n: int) -> NDArray[np.int64]:
    """Return one random permutation of 0 … n-1 per key, [len(keys), n]."""
    return np.argsort(_hashes(np.array(keys, np.uint64).reshape(-1, 1), n), axis=1, kind="stable")


def uniforms(key: int, n: int) -> NDArray[np.float64]:
    """Return n numbers in [0, 1); `uniform` draws on the device.

    >>> uniforms(key(0, "stragglers"), 3).shape
    (3,)
    """
    return (_hashes(np.uint64(key), n) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _hashes(key: np.uint64 | NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Return n random 64-bit numbers per key; a column of keys gives one row per key."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
        return z ^ (z >> np.uint64(31))


def generator(key: int) -> torch.Generator:
    """Return a torch generator on the CPU, seeded with the key; used for initial weights."""
    return torch.Generator().manual_seed(key)


def uniform(key: Tensor, *shape: int) -> Tensor:
    """Draw float32 numbers in [0, 1) from int64 keys.

    Args:
        key: Keys of any shape.
        *shape: Shape of the numbers drawn per key.

    Returns:
        A tensor of shape `key.shape + shape`.

    >>> uniform(torch.tensor([1, 2]), 3).shape
    torch.Size([2, 3])
    """
    index = torch.arange(1, math.prod(shape) + 1, device=key.device).reshape(shape)
    # Add the key before the product: the compiler would treat a plain multiple of the index as a 32-bit index.
    z = (key.reshape(key.shape + (1,) * len(shape)) + index) * _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    z = (z ^ _shift(z, 27)) * _signed(_M2)
    return _shift(z ^ _shift(z, 31), 40).float() * 2.0**-24


def fold_in(key: Tensor, number: int | Tensor) -> Tensor:
    """Derive new keys from keys and a number; different numbers give independent streams."""
    z = (key + (number + 1)) * _signed(_M2)
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    return z ^ _shift(z, 27)


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant


def _shift(z: Tensor, bits: int) -> Tensor:
    """Shift right logically; torch's shift keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
