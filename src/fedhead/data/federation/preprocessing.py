"""Preprocessing whose numbers come from the clients' training data, as sums that add up over clients."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.inputs import Inputs, tensors_of
from fedhead.data.federation.client_data import ClientData
from fedhead.data.inputs.arrays import Samples
from fedhead.data.inputs.missing_values import MissingValues, fill_inputs, is_table
from fedhead.data.transforms.augment import Transform
from fedhead.data.transforms.named_transforms import transform_each

F = TypeVar("F", bound=ClientData)


def allows_missing(missing: str) -> bool:
    """Return whether missing values are allowed, or raise `BadInput` if the setting is neither "refuse" nor "mean"."""
    if missing not in ("refuse", "mean"):
        raise BadInput(f"missing: {missing!r} is unknown, it is refuse or mean")
    return missing == "mean"


def prepare(federation: F, missing: str, augment: str | None, normalize: str | None, resize: int | None = None) -> F:
    """Return the federation with its missing values filled and its transform changed; see `Federation.from_arrays`.

    Args:
        federation: The federation with its clients' training rows.
        missing: "refuse" or "mean".
        augment: Augmentation in place of the transform's.
        normalize: Normalization in place of the transform's: a name, or "standard".
        resize: Height and width that images are resized to in place of the transform's.

    Raises:
        BadInput: If a name is unknown or does not fit the samples.
    """
    made = fill_missing(federation) if allows_missing(missing) else federation
    standard = normalize == "standard"
    made = replace(made, transform=made.transform.replace(augment, None if standard else normalize, resize=resize))
    return standardize(made) if standard else made


def fill_missing(federation: F) -> F:
    """Replace missing values (NaN) of a table by the feature's mean, and add an indicator column per such feature.

    The mean of a feature is the clients' sum of its values, divided by the sum of their counts; a feature that no
    client has is 0. Only training samples count; test and public samples are filled with the same means. Of named
    inputs those that are tables are filled.

    Args:
        federation: A federation with float features, [N, F].

    Raises:
        BadInput: If the samples are not rows of a table.
    """
    x = _training(federation)
    named = x if isinstance(x, dict) else {"": x}
    found = {name: MissingValues.find(t) for name, t in named.items() if is_table(t)}
    if not found:
        raise BadInput(
            f'missing="mean" is for tables of [N, features], the samples have shape {federation.input_shape}'
        )

    def fill(data: Samples | None) -> Samples | None:
        return None if data is None else Samples(fill_inputs(data.x, found), data.y)

    filled = {name: fill(getattr(federation, name)) for name in ("train", "test", "public")}
    return replace(federation, missing=found, **filled)  # type: ignore[arg-type]  # the training data is there


def standardize(federation: F) -> F:
    """Return the federation with a transform to mean 0 and deviation 1 per feature or channel.

    Both come from the sums of the clients' values, their squares and their counts. Of named inputs this concerns
    numbers and images; tokens and masks have no mean.

    Raises:
        BadInput: If the samples are tokens, or were filled up to one length.
    """
    x = _training(federation)
    if all(t.dtype in (torch.int64, torch.bool) for t in tensors_of(x)):
        raise BadInput("normalize: standard is for numbers, the samples are tokens")
    if isinstance(x, dict) and "x" in x and "mask" in x and x["x"].is_floating_point():
        raise BadInput("normalize: standard would count what samples were filled up with; normalize them first")
    return replace(federation, transform=transform_each(x, _standard, federation.transform))


def _standard(x: Tensor, given: Transform) -> Transform:
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
    return Transform(tuple(mean.tolist()), tuple(deviation.tolist()), given.augment, given.dtype, given.resize)


def _training(federation: ClientData) -> Inputs:
    """The inputs that the clients train on."""
    rows = np.sort(np.concatenate(federation.rows))
    return federation.train.x if len(rows) == len(federation.train.y) else federation.train.take(rows).x
