"""Construction of several architectures for one federation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedhead.core.components.component_syntax import read_call
from fedhead.models.registry import ModelLike, Shape, build
from fedhead.models.split_model import SplitModel

FEATURES = 512  # width of the feature layer for a classifier shared by all architectures (FedClassAvg)


def build_many(
    specs: Sequence[tuple[ModelLike, Mapping[str, Any]]],
    input_shape: Shape,
    classes: int,
    seed: int,
    folders: Iterable[str | Path] = (),
) -> list[SplitModel]:
    """Build several models, all with the same initial classifier.

    If the models differ in feature dimension and no feature layer was requested, each gets one of width 512.

    Args:
        specs: Name (as for `build`) and parameters of each model.
        input_shape: Shape of one input, without the batch axis.
        classes: Number of classes.
        seed: Seed of the initial weights.
        folders: Folders in which `file.py:Name` is searched before the working directory.

    Returns:
        The models, in the order of `specs`.

    >>> [m.features for m in build_many([("mlp", {}), ("digitscnn", {})], (1, 8, 8), classes=10, seed=0)]
    [512, 512]
    """
    options: dict[str, Any] = {"seed": seed, "folders": list(folders)}
    models = [build(name, input_shape, classes, **options, **params) for name, params in specs]
    requested = any(_asks_for_feature_layer(name, params) for name, params in specs)
    if requested or len({model.features for model in models}) == 1:
        return models
    options["feature_layer"] = FEATURES
    return [build(name, input_shape, classes, **options, **params) for name, params in specs]


def _asks_for_feature_layer(name: ModelLike, params: Mapping[str, Any]) -> bool:
    return "feature_layer" in params or (isinstance(name, str) and "feature_layer" in read_call(name, "model").named)
