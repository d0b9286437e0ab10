"""Small federations of different architectures that end in one feature dimension."""

from __future__ import annotations

from small import CLASSES, network
from torch import nn

from fedhead.core.training import global_generators
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split
from fedhead.recipes.recipe import Recipe

__all__ = ["RECIPE", "pair", "perceptron"]

RECIPE = Recipe(
    dataset="digits",
    partition="dirichlet(0.5)",
    clients=6,
    rounds=2,
    batch_size=32,
    optimizer="adam",
    lr=1e-3,
    client_test="matched",
    model=("mlp", "digitscnn(channels=4)", "digitscnn(channels=8, features=32)"),
    model_parameters={"feature_layer": 24},
    method="fedclassavg",
    subset=300,
)


def perceptron(features: int = 8, classes: int = CLASSES, bias: bool = True) -> SplitModel:
    """A network without convolutions and normalization layers."""
    with global_generators.seeded(1):
        net = nn.Sequential(
            nn.Flatten(), nn.Linear(36, 12), nn.Tanh(), nn.Linear(12, features), nn.Linear(features, classes, bias=bias)
        )
    return split(net, classifier="4")


def pair() -> list[SplitModel]:
    """Two architectures: a convolutional one with BatchNorm, and a perceptron."""
    return [network("batch"), perceptron()]
