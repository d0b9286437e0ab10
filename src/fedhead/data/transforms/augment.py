"""Transforms from stored samples to model inputs: augmentation and normalization on the compute device.

All steps map tensors to tensors with one random key per sample. They use no generator, no loop over samples and no
data-dependent shape, so a transform runs under `vmap` over clients and inside a CUDA graph. Crops, flips and rotations
only compute the source of each pixel; all of them are applied by a single gather on the stored bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fedhead.core.components.parameters import Checked, check
from fedhead.core.components.ranges import Above, AtLeast, AtMost
from fedhead.core.system.errors import BadInput, require, require_known, unknown
from fedhead.core.training import random
from fedhead.data.transforms import color
from fedhead.data.transforms.geometry import Grid, crop, flip, resize, resized_crop, rotate

Side = Annotated[int, AtLeast(1), AtMost(8192)]  # height or width of an image in pixels

# A step has one argument, as in rotate(15): its default, and its type with the allowed range.
_PIXELS, _PROBABILITY = Annotated[int, AtLeast(0)], Annotated[float, AtLeast(0), AtMost(1)]
# Steps that move pixels: (grid, keys, number) -> grid.
_GRID_STEPS: dict[str, tuple[Callable[[Grid, Tensor, Any], Grid], float, Any]] = {
    "crop": (lambda g, k, pad: crop(g, k, pad, reflect=False), 4, _PIXELS),
    "crop-reflect": (lambda g, k, pad: crop(g, k, pad, reflect=True), 4, _PIXELS),
    "flip": (lambda g, k, p: flip(g, k, p), 0.5, _PROBABILITY),
    "rotate": (lambda g, k, degrees: rotate(g, k, degrees), 15, Annotated[float, AtLeast(0), AtMost(180)]),
}
# Steps that compute new pixel values: (images in 0 … 1, keys, number) -> images.
_PIXEL_STEPS: dict[str, tuple[Callable[[Tensor, Tensor, Any], Tensor], float, Any]] = {
    "resized-crop": (lambda x, k, smallest: resized_crop(x, k, smallest), 0.2, Annotated[float, Above(0), AtMost(1)]),
    "jitter": (lambda x, k, p: color.jitter(x, k, p), 0.8, _PROBABILITY),
    "grayscale": (lambda x, k, p: color.grayscale(x, k, p), 0.2, _PROBABILITY),
}
STEPS = tuple(_GRID_STEPS) + tuple(_PIXEL_STEPS)

# Named augmentations of the papers and their code; `+` joins steps.
AUGMENTATIONS: dict[str, str] = {
    "none": "",
    "cifar": "crop-reflect(4)+flip",  # CIFAR-10 and CINIC-10 in MOON, FedML
    "cifar100": "crop(4)+flip+rotate(15)",  # CIFAR-100 in MOON
    "simclr": "resized-crop(0.2)+flip+jitter(0.8)+grayscale(0.2)",  # the views of FedClassAvg
}

# Named normalizations: mean and deviation per channel.
NORMALIZATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "unit": ((0.0,), (1.0,)),
    "half": ((0.5,), (0.5,)),
    "cifar10": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar10-fedclassavg": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
    "cinic10": ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)),
    "imagenet-gray": ((0.449,), (0.226,)),  # means over the three channels
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@dataclass(frozen=True)
class Transform(Checked):
    """Augmentation and normalization of a batch: `transform(x, key)` in training, `transform(x)` in evaluation.

    Args:
        mean: Mean per channel, or one for all; empty for no normalization.
        std: Standard deviations, one per mean.
        augment: Augmentation steps in order, such as "rotate(15)".
        dtype: Type of the result.
        resize: Height and width that images are resized to, after augmentation (`geometry.resize`); None: they keep
            their size.

    Raises:
        BadInput: If the parameters are inconsistent or a step is unknown.

    >>> Transform.named("cifar", "half").augment
    ('crop-reflect(4)', 'flip')
    >>> Transform(mean=(0.5,), std=(0.5,))(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).unique()
    tensor([1.])
    """

    mean: tuple[float, ...] = ()
    std: tuple[Annotated[float, Above(0)], ...] = ()
    augment: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    resize: Side | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.mean) == len(self.std), f"transform: {len(self.mean)} means but {len(self.std)} deviations")
        for step in self.augment:
            name, number = _parse_step(step)
            check(f"augmentation {step}", number, {**_GRID_STEPS, **_PIXEL_STEPS}[name][2])

    @classmethod
    def named(cls, augment: str = "none", normalize: str = "unit") -> Transform:
        """Create a transform from names.

        Args:
            augment: Named augmentation, or steps joined by `+`.
            normalize: Named normalization.

        Returns:
            The transform.

        Raises:
            BadInput: If a name is unknown.
        """
        require_known("normalization", normalize, NORMALIZATIONS)
        mean, std = NORMALIZATIONS[normalize]
        return cls(mean, std, steps(augment))

    def replace(
        self, augment: str | None = None, normalize: str | None = None, *, resize: int | None = None
    ) -> Transform:
        """Return a copy with other parameters.

        Args:
            augment: Named augmentation, or steps joined by `+`; None: unchanged.
            normalize: Named normalization; None: unchanged.
            resize: Height and width of the result; None: unchanged.

        Returns:
            The copy.
        """
        other = Transform.named(augment or "none", normalize or "unit")
        return Transform(
            self.mean if normalize is None else other.mean,
            self.std if normalize is None else other.std,
            self.augment if augment is None else other.augment,
            self.dtype,
            self.resize if resize is None else resize,
        )

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a transformed sample.

        Args:
            shape: Shape of a stored sample, without the batch axis.

        Returns:
            The same, or the shape of a resized image.
        """
        return shape if self.resize is None else (*shape[:-2], self.resize, self.resize)

    def check(self, shape: tuple[int, ...]) -> None:
        """Check that samples of a shape can be transformed.

        Args:
            shape: Shape of one sample, without the batch axis.

        Raises:
            BadInput: If they can't.
        """
        for kind, given in (("augmentation", "+".join(self.augment)), ("resize:", self.resize)):
            if given and len(shape) != 3:
                raise BadInput(f"{kind} {given} is for images, the samples have shape {shape}; leave it out")
        require(
            len(self.mean) <= 1 or (shape and shape[0] == len(self.mean)),
            f"normalization for {len(self.mean)} channels does not fit samples of shape {shape}",
        )
        for step in self.augment:
            name, number = _parse_step(step)
            if name == "crop-reflect" and min(shape[1:]) <= number:
                raise BadInput(f"augmentation {step}: images of {shape[1]}x{shape[2]} are too small to reflect")

    def __call__(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        """Transform a batch.

        Args:
            x: Samples as stored, [B, …]; tokens (int64) are returned unchanged.
            key: Random keys, int64 [B], one per sample; None to normalize only.
        """
        if x.dtype == torch.int64:  # tokens
            return x
        scale = 1.0 if x.is_floating_point() else 1 / 255
        augmented = key is not None and bool(self.augment)
        if self.resize is not None:
            batch = self._augmented(x, key, scale) if augmented and key is not None else x.to(self.dtype) * scale
            return self._normalized(resize(batch, self.resize, clamp=scale != 1.0), in_place=True)
        if augmented and key is not None:
            return self._normalized(self._augmented(x, key, scale), in_place=True)
        if scale == 1.0:
            return self._normalized(x.to(self.dtype), in_place=False)
        return self._normalized(x.to(self.dtype).mul_(scale), in_place=True)

    def _augmented(self, x: Tensor, key: Tensor, scale: float) -> Tensor:
        is_float = False  # whether x is already floats in 0 … 1
        moves: list[tuple[Callable[[Grid, Tensor, float], Grid], Tensor, float]] = []
        for number, step in enumerate(self.augment):
            name, argument = _parse_step(step)
            step_key = random.fold_in(key, number)
            if name in _GRID_STEPS:
                moves.append((_GRID_STEPS[name][0], step_key, argument))
                continue
            x = _move(x, moves)
            x = x if is_float else x.to(self.dtype) * scale
            x, is_float, moves = _PIXEL_STEPS[name][0](x, step_key, argument), True, []
        x = _move(x, moves)
        return x if is_float else x.to(self.dtype) * scale

    def _normalized(self, x: Tensor, in_place: bool) -> Tensor:
        """Subtract the mean and divide by the deviation; in place if `in_place`."""
        if not self.mean or (self.mean == (0.0,) and self.std == (1.0,)):
            return x
        mean, std = self._constants(self.mean, x), self._constants(self.std, x)
        return (x.sub_(mean) if in_place else x - mean).div_(std)

    @staticmethod
    def _constants(values: tuple[float, ...], x: Tensor) -> Tensor | float:
        if len(values) == 1:
            return values[0]
        # Fill on the device: a tensor created from a list is copied from the host, which a CUDA graph forbids.
        filled = torch.cat([torch.full((1,), v, dtype=x.dtype, device=x.device) for v in values])
        filled = filled.reshape(-1, *(1,) * (x.ndim - 2))
        if x.is_contiguous():
            return filled
        # Expand to the shape and memory format of a sample: in channels-last format PyTorch is slow otherwise.
        return torch.empty_like(x[0]).copy_(filled)


def steps(text: str) -> tuple[str, ...]:
    """Split a named augmentation, or steps joined by `+`, into its steps.

    >>> steps("flip + rotate(10)")
    ('flip', 'rotate(10)')
    """
    expanded = AUGMENTATIONS.get(text.strip(), text)
    return tuple(part.strip() for part in expanded.split("+") if part.strip())


def _parse_step(step: str) -> tuple[str, float]:
    """Return the name of a step and its argument, or the default argument."""
    match = re.fullmatch(r"([\w-]+)(?:\((\d*\.?\d+)\))?", step)
    if not match or match[1] not in STEPS:
        raise unknown("augmentation", step, [*AUGMENTATIONS, *STEPS])
    default = {**_GRID_STEPS, **_PIXEL_STEPS}[match[1]][1]
    return match[1], default if match[2] is None else float(match[2]) if "." in match[2] else int(match[2])


def _move(x: Tensor, moves: list[tuple[Callable[[Grid, Tensor, float], Grid], Tensor, float]]) -> Tensor:
    """Apply steps that move pixels: each output pixel is traced back through them, the last step first."""
    if not moves:
        return x
    grid = Grid.identity(x)
    for move, key, number in reversed(moves):
        grid = move(grid, key, number)
    return grid.gather(x)
