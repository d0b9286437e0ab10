"""Random numbers by key: a hash instead of a generator, so that every executor and machine draws the same.

A draw depends on its key and its place alone, never on what was drawn before. The same splitmix64 finaliser is
written once for numpy (batch orders, on the host) and once for torch (augmentation, dropout: inside a captured or
vectorized step).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN, _M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def key(*path: int | str) -> int:
    """A 63-bit key for a path such as (seed, "order", round, client): stable across machines and versions.

    >>> key(0, "order", 3) == key(0, "order", 3) != key(0, "order", 4)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(path).encode(), digest_size=8).digest(), "little") >> 1


def permutation(key: int, n: int) -> NDArray[np.int64]:
    """A random order of 0 … n-1."""
    with np.errstate(over="ignore"):
        z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(key)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_M1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_M2)
        return np.argsort(z ^ (z >> np.uint64(31)), kind="stable")


def generator(key: int) -> torch.Generator:
    """A torch generator on the CPU that starts at the key (for initial weights and the like)."""
    return torch.Generator().manual_seed(key)


_one_at_a_time = threading.RLock()


@contextmanager
def global_generator(key: int) -> Iterator[None]:
    """torch's global generator, started at the key, for layers that know no other; it is left as it was.

    There is one for all threads, so one thread at a time has it.
    """
    with _one_at_a_time, torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        yield


def uniform(key: Tensor, *shape: int) -> Tensor:
    """Numbers in [0, 1), float32, of shape `key.shape + shape`, from a tensor of int64 keys.

    >>> uniform(torch.tensor([1, 2]), 3).shape
    torch.Size([2, 3])
    """
    count = 1
    for side in shape:
        count *= side
    place = torch.arange(1, count + 1, device=key.device).reshape(shape)
    # The key joins before the product: a compiler would take a lone multiple of the place for an index of 32 bits.
    z = (key.reshape(key.shape + (1,) * len(shape)) + place) * _signed(_GOLDEN)
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    z = (z ^ _shift(z, 27)) * _signed(_M2)
    return _shift(z ^ _shift(z, 31), 40).float() * 2.0**-24


def fold_in(key: Tensor, number: int | Tensor) -> Tensor:
    """New keys from old ones and a number: fold_in(key, 0), fold_in(key, 1) … are unrelated streams."""
    z = (key + (number + 1)) * _signed(_M2)
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    return z ^ _shift(z, 27)


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >> 63 else constant


def _shift(z: Tensor, bits: int) -> Tensor:
    """A logical right shift: torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
