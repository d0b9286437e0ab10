"""Preprocessing fitted to the clients' training data, using only sums over clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput, require
from fedhead.core.tree.inputs import Inputs, tensors_of
from fedhead.data.federation.federation_data import FederationData
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.missing_values import MissingValues, fill_inputs, is_table, unfill_inputs
from fedhead.data.inputs.table_columns import TableColumns
from fedhead.data.inputs.table_sums import FeatureSums, feature_sums
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import transform_each

F = TypeVar("F", bound=FederationData)
FITTED = ("standard", "quantiles")  # normalizations that are fitted to the training samples
SAMPLE_SETS = ("train", "test", "public")  # sample sets of a federation


def allows_missing(missing: str) -> bool:
    """Return whether missing values are allowed; raise `BadInput` if `missing` is neither "refuse" nor "mean"."""
    require(missing in ("refuse", "mean"), f"missing: {missing!r} is unknown, it is refuse or mean")
    return missing == "mean"


def prepare(federation: F, missing: str, augment: str | None, normalize: str | None, resize: int | None = None) -> F:
    """Fill missing values and change the transform of a federation; see `Federation.from_arrays`.

    Args:
        federation: Federation with its clients' training samples.
        missing: "refuse" or "mean".
        augment: Augmentation that overrides the transform's.
        normalize: Normalization that overrides the transform's: a name, or one of `FITTED`.
        resize: Height and width of resized images, overriding the transform's.

    Raises:
        BadInput: If a name is unknown or does not apply to the samples.
    """
    fed = fill_missing(federation) if allows_missing(missing) else federation
    fitted = normalize in FITTED
    fed = replace(fed, transform=fed.transform.replace(augment, None if fitted else normalize, resize=resize))
    if normalize == "quantiles":
        return _scale_by_quantiles(fed, _training(federation))
    return standardize(fed) if fitted else fed


def fill_missing(federation: F) -> F:
    """Impute missing values (NaN) of a table with the feature's mean, and add an indicator column per such feature.

    Means are taken over the training samples of all clients and also used for test and public samples. A feature
    without any value is filled with 0. With named inputs, only tables are filled.

    Args:
        federation: A federation with float features, [N, F].

    Raises:
        BadInput: If the samples are not rows of a table.
    """
    x = _training(federation)
    named = x if isinstance(x, dict) else {"": x}
    missing = {
        name: MissingValues.fit(_sums(t, federation.columns), len(t)) for name, t in named.items() if is_table(t)
    }
    require(missing, f'missing="mean" is for tables of [N, features], the samples have shape {federation.input_shape}')
    return _with_inputs(federation, lambda x: fill_inputs(x, missing), missing)


def standardize(federation: F) -> F:
    """Return the federation with a transform to mean 0 and deviation 1 per feature or channel.

    Mean and deviation are computed from the clients' sums of values and squares. With named inputs, only numbers and
    images are standardized, not tokens and masks.

    Raises:
        BadInput: If the samples are tokens, or were padded.
    """
    x = _training(federation)
    if all(t.dtype in (torch.int64, torch.bool) for t in tensors_of(x)):
        raise BadInput("normalize: standard is for numbers, the samples are tokens")
    if isinstance(x, dict) and "x" in x and "mask" in x and x["x"].is_floating_point():
        raise BadInput("normalize: standard would count what samples were filled up with; normalize them first")
    return replace(
        federation, transform=transform_each(x, partial(_standard, federation.columns), federation.transform)
    )


def refit(before: FederationData, made: F) -> F:
    """Recompute the means and deviations of a federation from its training samples.

    Args:
        before: Federation with the current means and deviations.
        made: Federation derived from `before`, with fewer training samples.
    """
    normalize, missing = _fitted(before), "mean" if before.missing else "refuse"
    return prepare(_raw(made, before.missing, normalize), missing, None, normalize)


def _scale_by_quantiles(federation: F, unfilled: Inputs) -> F:
    """Return the federation with a transform of the numbers' lower and upper quantiles to -1 and 1."""
    columns, given = federation.columns, federation.transform
    if columns is None or not isinstance(unfilled, Tensor) or not isinstance(given, Transform):
        raise BadInput("normalize: quantiles is for tables with a schema, which states the ranges of the columns")
    indicators = [(0.0, 1.0) for filled in federation.missing.values() for _ in filled.indicated]
    scale = columns.quantile_scale(columns.histograms(unfilled)) + indicators
    mean, deviation = zip(*scale, strict=True)
    return replace(federation, transform=Transform(mean, deviation, given.augment, given.dtype, given.resize))


def _raw(federation: F, missing: Mapping[str, MissingValues], normalize: str | None) -> F:
    """Return the federation before `prepare`."""
    if normalize is not None:
        federation = replace(federation, transform=federation.transform.replace(None, "unit"))
    return _with_inputs(federation, lambda x: unfill_inputs(x, missing), {})


def _with_inputs(federation: F, change: Callable[[Inputs], Inputs], missing: Mapping[str, MissingValues]) -> F:
    """Return the federation with changed inputs in all its sample sets."""
    changed = {
        part: Samples(change(samples.x), samples.y)
        for part in SAMPLE_SETS
        if (samples := getattr(federation, part)) is not None
    }
    return replace(federation, missing=missing, **changed)  # type: ignore[arg-type]  # samples alone


def _fitted(federation: FederationData) -> str | None:
    """Return the fitted normalization of a federation; None for others."""
    missing = "mean" if federation.missing else "refuse"
    for normalize in FITTED:
        try:
            again = prepare(_raw(federation, federation.missing, normalize), missing, None, normalize)
        except BadInput:  # tokens, or padded samples; no table
            continue
        if again.transform == federation.transform:
            return normalize
    return None


def _sums(x: Tensor, columns: TableColumns | None) -> list[FeatureSums]:
    sums = feature_sums(x)
    return sums if columns is None else columns.sums_of_numbers(sums, len(x))


def _standard(columns: TableColumns | None, x: Tensor, given: Transform) -> Transform:
    if is_table(x):
        sums = _sums(x, columns)
        means, deviations = tuple(s.mean for s in sums), tuple(s.deviation for s in sums)
        return Transform(means, deviations, given.augment, given.dtype, given.resize)
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
    return Transform(tuple(mean.tolist()), tuple(deviation.tolist()), given.augment, given.dtype, given.resize)


def _training(federation: FederationData) -> Inputs:
    """Return the inputs of the clients' training samples, with those held out for validation."""
    rows = np.sort(np.concatenate([*federation.rows, *(federation.validation or [])]))
    return federation.train.x if len(rows) == len(federation.train.y) else federation.train.take(rows).x
