"""Data sets of many clients and of many classes, made on the spot, for `benchmarks/scale.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Arrays = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


def many_samples() -> Arrays:
    """Return 200,000 samples of 10 classes: 20 for each of 10,000 clients."""
    return _blobs(classes=10, train=200_000, test=2_000)


def many_classes() -> Arrays:
    """Return 20 samples of each of 1,000 classes, and 2 to test on."""
    return _blobs(classes=1_000, train=20_000, test=2_000)


def _blobs(classes: int, train: int, test: int, features: int = 32) -> Arrays:
    """Gaussian classes around random centers; each has equally many samples."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(classes, features)).astype(np.float32)
    y = np.arange(train + test, dtype=np.int64) % classes
    x = centers[y] + rng.normal(scale=1.2, size=(len(y), features)).astype(np.float32)
    return x[:train], y[:train], x[train:], y[train:]
