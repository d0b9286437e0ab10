"""Models for one federation of several architectures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedhead.models.registry import Shape, build
from fedhead.models.split_model import SplitModel

FEATURES = 512  # of the layer that lets architectures of any width share one classifier (FedClassAvg)


def build_many(
    asked: Sequence[tuple[str, Mapping[str, Any]]], input_shape: Shape, classes: int, seed: int
) -> list[SplitModel]:
    """One model for each name and its parameters, all with the same first classifier.

    Where their features differ in dimension, and no feature layer is asked for, each ends in one of 512 features.

    >>> [m.features for m in build_many([("mlp", {}), ("digitscnn", {})], (1, 8, 8), classes=10, seed=0)]
    [512, 512]
    """
    made = [build(name, input_shape, classes, seed=seed, **given) for name, given in asked]
    told = any("feature_layer" in given for _, given in asked)
    if told or len({model.features for model in made}) == 1:
        return made
    return [build(name, input_shape, classes, seed=seed, feature_layer=FEATURES, **given) for name, given in asked]
