"""Shapes, types and transforms of a model's inputs as JSON: for sites, run folders and saved federations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedhead.core.components.ranges import Above, AtLeast
from fedhead.core.tree.inputs import Inputs
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

    def transform(self) -> Transform:
        """Transform from stored samples to this input."""
        return Transform(tuple(self.mean), tuple(self.std), tuple(self.augment), resize=self.resize)


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


def read_transform(entries: Mapping[str, Any]) -> Transform:
    """Return the transform from its JSON form, the inverse of `describe_transform`."""
    steps = tuple(entries["augment"])
    return Transform(tuple(entries["mean"]), tuple(entries["std"]), steps, resize=entries.get("resize"))
