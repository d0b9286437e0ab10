"""Transforms of named inputs, one per entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhead.core.system.errors import BadInput, require
from fedhead.core.tree.inputs import Inputs, Shape
from fedhead.data.transforms.augment import Transform


@dataclass(frozen=True)
class NamedTransforms:
    """Augmentation and normalization of named inputs, with one transform per entry.

    An augmentation moves the images of all entries in the same way, so they stay aligned.

    Args:
        parts: Transforms keyed by entry; entries without a transform are unchanged.
    """

    parts: Mapping[str, Transform]

    @property
    def augment(self) -> tuple[str, ...]:
        """Augmentation steps of all entries."""
        return tuple(step for transform in self.parts.values() for step in transform.augment)

    def replace(
        self, augment: str | None = None, normalize: str | None = None, *, resize: int | None = None
    ) -> NamedTransforms:
        """Return a copy with other parameters of the images; see `Transform.replace`.

        Args:
            augment: Named augmentation, or steps joined by `+`; None: unchanged.
            normalize: Named normalization; None: unchanged.
            resize: Height and width of the result; None: unchanged.

        Returns:
            The copy.

        Raises:
            BadInput: If a change is requested but no entry has a transform.
        """
        if augment is None and normalize is None and resize is None:
            return self
        if not self.parts and augment != "none":
            raise BadInput("augment, normalize and resize are for images, and none of the named inputs holds such")
        return NamedTransforms(
            {name: part.replace(augment, normalize, resize=resize) for name, part in self.parts.items()}
        )

    def output_shape(self, shape: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a transformed sample.

        Args:
            shape: Shapes of a stored sample, keyed by entry.

        Returns:
            Shapes keyed by entry.
        """
        return {name: self.parts[name].output_shape(s) if name in self.parts else s for name, s in shape.items()}

    def check(self, shape: Mapping[str, tuple[int, ...]]) -> None:
        """Check that samples of these shapes can be transformed.

        Args:
            shape: Shapes of one sample, keyed by entry.

        Raises:
            BadInput: If they can't.
        """
        for name, transform in self.parts.items():
            require(name in shape, f"transform: the samples have no {name!r}, they have {', '.join(shape)}")
            transform.check(shape[name])

    def __call__(self, x: Mapping[str, Tensor], key: Tensor | None = None) -> dict[str, Tensor]:
        """Transform a batch.

        Args:
            x: Named samples as stored, each [B, …].
            key: Random keys, int64 [B], one per sample; None to normalize only.
        """
        return {name: self.parts[name](t, key) if name in self.parts else t for name, t in x.items()}


AnyTransform = Transform | NamedTransforms


def default_transform(x: Inputs) -> AnyTransform:
    """Return the default transform: images scaled to -1 … 1, other inputs unchanged."""
    if isinstance(x, dict):
        return NamedTransforms({name: _default(t) for name, t in x.items() if t.dtype == torch.uint8})
    return _default(x)


def check_kind(transform: AnyTransform, shape: Shape) -> None:
    """Check a transform against the shape of one sample.

    Raises:
        BadInput: If the transform is for named inputs and the sample is not, or vice versa, or if the shape is not
            supported.
    """
    if isinstance(transform, NamedTransforms) != isinstance(shape, dict):
        kind = "NamedTransforms({name: Transform(…)})" if isinstance(shape, dict) else "Transform(…)"
        raise BadInput(f"transform is {type(transform).__name__}, the samples need {kind}")
    transform.check(shape)  # type: ignore[arg-type]  # of the same kind, as checked


def _default(x: Tensor) -> Transform:
    return Transform.named(normalize="half") if x.dtype == torch.uint8 else Transform()
