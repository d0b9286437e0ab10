"""Multilayer perceptron on flattened inputs."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

from fedhead.models.dropout import Dropout
from fedhead.models.registry import DropRate, FeatureExtractor, Shape, Width, register


@register("mlp", "multilayer perceptron; hidden widths, norm none|batch|group, dropout")
def mlp(
    shape: Shape,
    hidden: tuple[Width, ...] = (200, 200),
    norm: Literal["none", "batch", "group"] = "none",
    dropout: DropRate = 0.0,
) -> FeatureExtractor:
    """Build linear layers with ReLU; by default 200 and 200 wide, as in the 2NN of the FedAvg paper."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(int(side) for side in shape)
    for out_features in hidden:
        layer: list[nn.Module] = [nn.Linear(width, out_features)]
        if norm == "batch":
            layer.append(nn.BatchNorm1d(out_features))
        elif norm == "group":
            layer.append(nn.GroupNorm(math.gcd(out_features, 8), out_features))
        layer.append(nn.ReLU())
        if dropout:
            layer.append(Dropout(dropout))
        layers.append(nn.Sequential(*layer))
        width = out_features
    return FeatureExtractor(nn.Sequential(*layers), width)
