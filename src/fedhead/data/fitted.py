"""Preprocessing whose numbers come from the clients' training data, as sums that add up over clients."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhead.core.errors import BadInput
from fedhead.data.arrays import Samples
from fedhead.data.augment import Transform
from fedhead.data.client_data import ClientData

F = TypeVar("F", bound=ClientData)


def allows_missing(missing: str) -> bool:
    """Return whether missing values are allowed, or raise `BadInput` if the setting is neither "refuse" nor "mean"."""
    if missing not in ("refuse", "mean"):
        raise BadInput(f"missing: {missing!r} is unknown, it is refuse or mean")
    return missing == "mean"


def prepare(federation: F, missing: str, augment: str | None, normalize: str | None) -> F:
    """Return the federation with its missing values filled and its transform changed; see `Federation.from_arrays`.

    Args:
        federation: The federation with its clients' training rows.
        missing: "refuse" or "mean".
        augment: Augmentation in place of the transform's.
        normalize: Normalization in place of the transform's: a name, or "standard".

    Raises:
        BadInput: If a name is unknown or does not fit the samples.
    """
    made = fill_missing(federation) if allows_missing(missing) else federation
    standard = normalize == "standard"
    made = replace(made, transform=made.transform.replace(augment, None if standard else normalize))
    return standardize(made) if standard else made


def fill_missing(federation: F) -> F:
    """Replace missing values (NaN) of a table by the feature's mean, and add an indicator column per such feature.

    The mean of a feature is the clients' sum of its values, divided by the sum of their counts; a feature that no
    client has is 0. Only training samples count; test and public samples are filled with the same means.

    Args:
        federation: A federation with float features, [N, F].

    Raises:
        BadInput: If the samples are not rows of a table.
    """
    x = _training(federation)
    if x.dim() != 2 or not x.is_floating_point():
        raise BadInput(
            f'missing="mean" is for tables of [N, features], the samples have shape {federation.input_shape}'
        )
    there = ~x.isnan()
    mean = torch.where(there, x, 0).sum(0) / there.sum(0).clamp_min(1)
    indicated = (~there).any(0)

    def fill(data: Samples) -> Samples:
        missing = data.x.isnan()
        filled = torch.where(missing, mean.to(data.x), data.x)
        return Samples(torch.cat([filled, missing[:, indicated].to(data.x)], 1), data.y)

    return replace(
        federation,
        train=fill(federation.train),
        test=None if federation.test is None else fill(federation.test),
        public=None if federation.public is None else fill(federation.public),
    )


def standardize(federation: F) -> F:
    """Return the federation with a transform to mean 0 and deviation 1 per feature or channel.

    Both come from the sums of the clients' values, their squares and their counts.

    Raises:
        BadInput: If the samples are tokens.
    """
    x = _training(federation)
    if x.dtype == torch.int64:
        raise BadInput("normalize: standard is for numbers, the samples are tokens")
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
    deviation[deviation < 1e-8 * (1 + mean.abs())] = 1.0  # a constant feature
    given = federation.transform
    transform = Transform(tuple(mean.tolist()), tuple(deviation.tolist()), given.augment, given.dtype)
    return replace(federation, transform=transform)


def _training(federation: ClientData) -> Tensor:
    """The inputs that the clients train on."""
    rows = np.sort(np.concatenate(federation.rows))
    return federation.train.x if len(rows) == len(federation.train.y) else federation.train.take(rows).x
