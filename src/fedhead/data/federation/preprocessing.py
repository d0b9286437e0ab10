"""Preprocessing fitted to the clients' training data, using only sums over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput, require
from fedhead.core.tree.inputs import Inputs
from fedhead.data.federation.federation_data import FederationData
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.missing_values import MissingValues, fill_inputs, is_table, unfill_inputs
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.data.inputs.table_statistics import FittedNumbers, Preprocessing, Scale, fit_numbers
from fedhead.data.inputs.table_sums import feature_sums
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import AnyTransform, NamedTransforms

F = TypeVar("F", bound=FederationData)
FITTED = ("standard", "quantiles")  # normalizations that are fitted to the training samples
SAMPLE_SETS = ("train", "test", "public")  # sample sets of a federation


def allows_missing(missing: str) -> bool:
    """Return whether missing values are allowed; raise `BadInput` if `missing` is neither "refuse" nor "mean"."""
    require(missing in ("refuse", "mean"), f"missing: {missing!r} is unknown, it is refuse or mean")
    return missing == "mean"


def prepare(federation: F, missing: str, augment: str | None, normalize: str | None, resize: int | None = None) -> F:
    """Fill missing values and change the transform of a federation; see `Federation.from_arrays`.

    Means, deviations and quantiles are of all clients' training samples, and also used for test and public samples.

    Args:
        federation: Federation with its clients' training samples.
        missing: "refuse" or "mean".
        augment: Augmentation that overrides the transform's.
        normalize: Normalization that overrides the transform's: a name, or one of `FITTED`.
        resize: Height and width of resized images, overriding the transform's.

    Raises:
        BadInput: If a name is unknown or does not apply to the samples.
    """
    fitted = normalize if normalize in FITTED else None
    transform = federation.transform.replace(augment, None if fitted else normalize, resize=resize)
    fed = replace(federation, transform=transform, fitted=federation.fitted if normalize is None else fitted)
    if fitted and federation.missing:
        fed, missing = _unfilled(fed), "mean"
    wanted = Preprocessing(allows_missing(missing), fitted)
    return _fit(fed, wanted) if wanted.any else fed


def refit(federation: F) -> F:
    """Recompute the means, deviations and quantiles of a federation from its present training samples."""
    return prepare(_unfilled(federation), "mean" if federation.missing else "refuse", None, federation.fitted)


def _fit(federation: F, wanted: Preprocessing) -> F:
    """Fit the fill values and the normalization to sums over the clients."""
    x, given, columns = _training(federation), federation.transform, federation.columns
    named = x if isinstance(x, dict) else {"": x}
    numbers = {name: t for name, t in named.items() if t.is_floating_point() or t.dtype == torch.uint8}
    require(
        not wanted.missing or any(map(is_table, numbers.values())),
        f'missing="mean" is for tables of [N, features], the samples have shape {federation.input_shape}',
    )
    require(not wanted.normalize or numbers, "normalize: standard is for numbers, the samples are tokens")
    if wanted.normalize == "standard" and {"x", "mask"} <= named.keys() and "x" in numbers:
        raise BadInput("normalize: standard would count what samples were filled up with; normalize them first")
    if wanted.normalize == "quantiles" and (columns is None or isinstance(x, dict)):
        raise BadInput("normalize: quantiles is for tables with a schema, which states the ranges of the columns")
    missing, transforms = {}, dict(given.parts) if isinstance(given, NamedTransforms) else {"": given}
    for name, t in numbers.items():
        fill, scale = _fit_table(t, columns, wanted) if is_table(t) else (None, _scale_of_channels(t, wanted))
        if fill is not None:
            missing[name] = fill
        if scale is not None:
            mean, deviation = zip(*scale, strict=True)
            transforms[name] = replace(transforms.get(name, Transform()), mean=mean, std=deviation)
    transform = NamedTransforms(transforms) if isinstance(given, NamedTransforms) else transforms[""]
    return _with_inputs(federation, lambda x: fill_inputs(x, missing), missing, transform)


def _fit_table(x: Tensor, columns: TableColumns | None, wanted: Preprocessing) -> FittedNumbers:
    sums = feature_sums(x) if wanted.sums else []
    histograms = columns.histograms(x) if columns is not None and wanted.normalize == "quantiles" else {}
    return fit_numbers(columns, sums, len(x), histograms, wanted)


def _scale_of_channels(x: Tensor, wanted: Preprocessing) -> Scale | None:
    """Return mean and deviation of each channel of images or series."""
    if wanted.normalize is None:
        return None
    scale = 1 / 255 if x.dtype == torch.uint8 else 1.0
    axes = [axis for axis in range(x.dim()) if axis != 1]
    count = x.numel() / x.shape[1]
    total, squares = x.new_zeros(x.shape[1], dtype=torch.float64), x.new_zeros(x.shape[1], dtype=torch.float64)
    for part in torch.split(x, 4096):
        values = part.double() * scale
        total += values.sum(axes)
        squares += values.square().sum(axes)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
    deviation[deviation < 1e-8 * (1 + mean.abs())] = 1.0  # leave constant features unscaled
    return list(zip(mean.tolist(), deviation.tolist(), strict=True))


def _unfilled(federation: F) -> F:
    """Return the federation without what was fitted, with NaN where values are missing."""
    transform = federation.transform if federation.fitted is None else federation.transform.replace(normalize="unit")
    return _with_inputs(federation, lambda x: unfill_inputs(x, federation.missing), {}, transform)


def _with_inputs(
    federation: F, change: Callable[[Inputs], Inputs], missing: Mapping[str, MissingValues], transform: AnyTransform
) -> F:
    """Return the federation with changed inputs in all its sample sets."""
    changed: dict[str, Any] = {
        part: Samples(change(samples.x), samples.y)
        for part in SAMPLE_SETS
        if (samples := getattr(federation, part)) is not None
    }
    return replace(federation, missing=missing, transform=transform, **changed)


def _training(federation: FederationData) -> Inputs:
    """Return the inputs of the clients' training samples, with those held out for validation."""
    indices = np.sort(np.concatenate([*federation.indices, *(federation.validation or [])]))
    return federation.train.x if len(indices) == len(federation.train.y) else federation.train.take(indices).x
