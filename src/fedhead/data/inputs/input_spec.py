"""Shapes, types and transforms of a model's inputs as JSON: for sites, run folders and saved federations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch

from fedhead.core.components.parameters import from_mapping
from fedhead.core.components.ranges import Above, AtLeast
from fedhead.core.tree.inputs import Inputs, blank
from fedhead.data.transforms.augment import Side, Transform
from fedhead.data.transforms.named_transforms import AnyTransform, NamedTransforms


@dataclass(frozen=True)
class NamedInput:
    """Specification of one named input of a model."""

    shape: list[Annotated[int, AtLeast(1)]]  # shape of one sample
    type: Literal["float32", "uint8", "int64", "bool"]  # as stored at the sites
    mean: list[float] = field(default_factory=list)
    std: list[Annotated[float, Above(0)]] = field(default_factory=list)
    augment: list[str] = field(default_factory=list)
    resize: Side | None = None


def spec_inputs(x: Inputs, transform: AnyTransform) -> dict[str, Any]:
    """Return the JSON form of the inputs' shape and transform, or dictionaries for named inputs."""
    if isinstance(x, dict):
        assert isinstance(transform, NamedTransforms)
        kinds = {
            name: {"shape": list(t.shape[1:]), "type": str(t.dtype).removeprefix("torch.")} for name, t in x.items()
        }
        transforms = {name: describe_transform(part) for name, part in transform.parts.items()}
        named = {name: kind | transforms.get(name, {}) for name, kind in kinds.items()}
        return {"shape": [], "named": named}
    assert isinstance(transform, Transform)
    return {"shape": list(x.shape[1:]), **describe_transform(transform)}


def describe_transform(transform: Transform) -> dict[str, Any]:
    """Return the JSON form of a transform."""
    entries = {"mean": list(transform.mean), "std": list(transform.std), "augment": list(transform.augment)}
    return entries if transform.resize is None else {**entries, "resize": transform.resize}


def transform_of(entries: Mapping[str, Any]) -> AnyTransform:
    """Return the transform of a result of `spec_inputs`.

    Raises:
        BadInput: If an entry of a named input is unknown or invalid.
    """
    if not entries.get("named"):
        return _transform(entries)
    transforms = {name: _transform(vars(entry)) for name, entry in _named_inputs(entries).items()}
    return NamedTransforms({name: transform for name, transform in transforms.items() if transform != Transform()})


def blank_of(entries: Mapping[str, Any]) -> Inputs:
    """Return a stored sample of zeros for a result of `spec_inputs`, with the `dtype` of a single input.

    Raises:
        BadInput: If an entry of a named input is unknown or invalid.
    """
    if not entries.get("named"):
        return blank(tuple(entries["shape"]), getattr(torch, entries["dtype"]))
    named = _named_inputs(entries)
    types = {name: getattr(torch, entry.type) for name, entry in named.items()}
    return blank({name: tuple(entry.shape) for name, entry in named.items()}, types)


def _named_inputs(entries: Mapping[str, Any]) -> dict[str, NamedInput]:
    return {name: from_mapping(NamedInput, entry) for name, entry in entries["named"].items()}


def _transform(entries: Mapping[str, Any]) -> Transform:
    mean, std, augment = (tuple(entries[name]) for name in ("mean", "std", "augment"))
    return Transform(mean, std, augment, resize=entries.get("resize"))
