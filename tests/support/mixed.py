"""Small networks of different architectures that end in one feature dimension, for mixed federations."""

from __future__ import annotations

import torch
from small import CLASSES, network
from torch import nn

from fedhead.models.split import Split, split


def perceptron(features: int = 8, classes: int = CLASSES, bias: bool = True) -> Split:
    """A network without convolutions or normalisation layers for `small.federation`."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, features), nn.Linear(features, classes, bias=bias)
        )
    return split(net, classifier="4")


def pair() -> list[Split]:
    """Two architectures: a convolutional one with BatchNorm, and a perceptron."""
    return [network("batch"), perceptron()]
