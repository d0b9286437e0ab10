"""Models for one federation with several architectures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedhead.models.registry import Entry, Shape, build
from fedhead.models.split_model import SplitModel

FEATURES = 512  # width of the feature layer that lets all architectures share one classifier (FedClassAvg)


def build_many(
    specs: Sequence[tuple[str | Entry, Mapping[str, Any]]], input_shape: Shape, classes: int, seed: int
) -> list[SplitModel]:
    """Build one model per name (or entry of the registry), all with the same initial classifier.

    If the models differ in feature dimension and no feature layer was requested, each gets one of 512 features.

    Args:
        specs: Name and parameters of each model.
        input_shape: Shape of one input, without the batch axis.
        classes: Number of classes.
        seed: Seed of the initial weights.

    Returns:
        The models, in the order of `specs`.

    >>> [m.features for m in build_many([("mlp", {}), ("digitscnn", {})], (1, 8, 8), classes=10, seed=0)]
    [512, 512]
    """
    models = [build(name, input_shape, classes, seed=seed, **params) for name, params in specs]
    requested = any("feature_layer" in params for _, params in specs)
    if requested or len({model.features for model in models}) == 1:
        return models
    return [build(name, input_shape, classes, seed=seed, feature_layer=FEATURES, **params) for name, params in specs]
