"""Gaussian noise from the operating system's entropy.

The seed of a run is public, so noise drawn from it could be subtracted. A `test_seed` replaces the entropy in tests
only; it is a parameter of the protection, so it is in the recipe and in every guarantee (`Guarantee.secret`).
"""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from fedhead.core.training import random


class SystemGenerator:
    """Normal numbers from the operating system's cryptographic generator.

    Statistics of an empty class are its noise alone. From such numbers the state of NumPy's generators, and so all
    other noise, may be computed.
    """

    def standard_normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return draws from N(0, 1): the quantiles of 63 random bits, with a random sign."""
        bits = np.frombuffer(os.urandom(8 * int(np.prod(shape))), np.uint64).reshape(shape)
        lower = ndtri(((bits >> np.uint64(1)) + 0.5) * 2.0**-64)  # of probabilities up to 1/2, dense near 0
        drawn: NDArray[np.float64] = np.where(bits & np.uint64(1), lower, -lower)
        return drawn


Generator = np.random.Generator | SystemGenerator


def generator(test_seed: int | None = None, *path: int | str) -> Generator:
    """Return a generator of noise.

    Args:
        test_seed: Seed in place of the entropy, for tests.
        *path: Path of a test's generator, such as (stage, client), so that executors draw the same numbers.
    """
    if test_seed is None:
        return SystemGenerator()
    return np.random.Generator(np.random.PCG64DXSM(random.key(test_seed, "noise", *path)))


def gaussian(source: Generator, shape: tuple[int, ...], sigma: float) -> Tensor:
    """Return float64 draws from N(0, σ²) on the CPU."""
    return torch.from_numpy(source.standard_normal(shape)).mul_(sigma)
