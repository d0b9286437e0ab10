"""Small federations of different architectures that end in one feature dimension."""

from __future__ import annotations

from small import network

from fedhead.models.split_model import SplitModel
from fedhead.recipes.recipe import Recipe
from fedhead.testing.small import small_perceptron as perceptron

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


def pair() -> list[SplitModel]:
    """Two architectures: a convolutional one with BatchNorm, and a perceptron."""
    return [network("batch"), perceptron()]
