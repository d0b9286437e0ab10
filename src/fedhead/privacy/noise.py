"""Gaussian noise from the operating system's entropy.

The seed of a run is public, so noise drawn from it could be subtracted. A `test_seed` replaces the entropy in tests
only; it is a parameter of the protection, so it is in the recipe and in every guarantee (`Guarantee.secret`).
"""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Tensor

from fedhead.core.training import random


def generator(test_seed: int | None = None, *path: int | str) -> np.random.Generator:
    """Return a generator seeded by the operating system's entropy.

    Args:
        test_seed: Seed in place of the entropy, for tests.
        *path: Path of a test's generator, such as (stage, client), so that executors draw the same numbers.
    """
    seed = secrets.randbits(128) if test_seed is None else random.key(test_seed, "noise", *path)
    return np.random.Generator(np.random.PCG64DXSM(seed))


def gaussian(source: np.random.Generator, shape: tuple[int, ...], sigma: float) -> Tensor:
    """Return float64 draws from N(0, σ²) on the CPU."""
    return torch.from_numpy(source.standard_normal(shape)).mul_(sigma)
