"""Data and a model of CIFAR-10's shape for `targets.py`; its recipes name them as targets_data.py:NAME."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

import fedhead as fh

Arrays = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]


def images() -> Arrays:
    """Return random images in CIFAR-10's numbers: 50,000 to train on and 10,000 to test on."""
    return _random(50_000, 10_000)


def few_images() -> Arrays:
    """Return 200 random images to train on and 40 to test on."""
    return _random(200, 40)


def _random(train: int, test: int) -> Arrays:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (train + test, 3, 32, 32), dtype=np.uint8)
    y = np.arange(train + test, dtype=np.int64) % 10
    return x[:train], y[:train], x[train:], y[train:]


def pfl_cnn(shape: tuple[int, ...], classes: int = 10) -> fh.SplitModel:
    """Build the `simple_cnn` of pfl-research's benchmarks (benchmarks/model/pytorch/cnn.py), 1.6 million parameters.

    Theirs pools after the second ReLU; here the ReLU comes after the pooling, which gives the same numbers.
    """
    module = pfl_module(shape, classes)
    return fh.split(module, classifier=str(len(module) - 1))


def pfl_module(shape: tuple[int, ...], classes: int = 10) -> nn.Sequential:
    """Build the same network as a plain module."""
    side = (shape[-1] - 4) // 2
    module = nn.Sequential(
        *(nn.Conv2d(shape[0], 32, 3), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(64 * side * side, 128), nn.ReLU(), nn.Dropout(0.5)),
        nn.Linear(128, classes),
    )
    for layer in module:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return module
