"""Transforms: from stored samples to a model's input, augmented and normalized where the data lives.

Everything is tensors in, tensors out, one random key a sample: no generator, no loop over samples and no shape that
depends on data, so a transform runs under `vmap` over clients and inside a CUDA graph. Crops, flips and rotations only
say which pixel goes where; they are composed into one gather on the stored bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhead.core import random
from fedhead.core.errors import BadInput, unknown
from fedhead.data import color
from fedhead.data.geometry import Grid, crop, cutout, flip, resized_crop, rotate

# Steps that move pixels: (grid, keys, number) -> grid. The number is the step's argument, as in rotate(15).
_MOVES: dict[str, tuple[Callable[[Grid, Tensor, float], Grid], float]] = {
    "crop": (lambda g, k, pad: crop(g, k, int(pad), reflect=False), 4),
    "crop-reflect": (lambda g, k, pad: crop(g, k, int(pad), reflect=True), 4),
    "flip": (lambda g, k, p: flip(g, k, p), 0.5),
    "rotate": (lambda g, k, degrees: rotate(g, k, degrees), 15),
    "cutout": (lambda g, k, side: cutout(g, k, int(side)), 16),
}
# Steps that compute new pixels: (images in 0 … 1, keys, number) -> images.
_PAINTS: dict[str, tuple[Callable[[Tensor, Tensor, float], Tensor], float]] = {
    "resized-crop": (lambda x, k, smallest: resized_crop(x, k, smallest), 0.2),
    "jitter": (lambda x, k, p: color.jitter(x, k, p), 0.8),
    "grayscale": (lambda x, k, p: color.grayscale(x, k, p), 0.2),
}
STEPS = tuple(_MOVES) + tuple(_PAINTS)

# Names for what the papers and their code do; `+` joins steps.
AUGMENTATIONS: dict[str, str] = {
    "none": "",
    "cifar": "crop-reflect(4)+flip",  # CIFAR-10 and CINIC-10 in MOON, FedML
    "cifar100": "crop(4)+flip+rotate(15)",  # CIFAR-100 in MOON
    "cutout": "crop(4)+flip+cutout(16)",  # CIFAR-100 in FedML
    "simclr": "resized-crop(0.2)+flip+jitter(0.8)+grayscale(0.2)",  # the views of FedClassAvg
}

# Mean and deviation per channel, by name.
NORMALIZATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "unit": ((0.0,), (1.0,)),
    "half": ((0.5,), (0.5,)),
    "cifar10": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar10-fedclassavg": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
    "cinic10": ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


@dataclass(frozen=True)
class Transform:
    """Augments and normalizes a batch: `transform(x, key)` for training, `transform(x)` for evaluation.

    >>> Transform.named("cifar", "half").augment
    ('crop-reflect(4)', 'flip')
    >>> Transform(mean=(0.5,), std=(0.5,))(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).unique()
    tensor([1.])
    """

    mean: tuple[float, ...] = ()  # per channel, or one for all; none: no normalization
    std: tuple[float, ...] = ()
    augment: tuple[str, ...] = ()  # steps in order, each with its argument, such as "rotate(15)"
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise BadInput(f"transform: {len(self.mean)} means but {len(self.std)} deviations")
        if not all(s > 0 for s in self.std):
            raise BadInput(f"transform: deviations must be positive, not {self.std}")
        for step in self.augment:
            _read(step)

    @classmethod
    def named(cls, augment: str = "none", normalize: str = "unit") -> Transform:
        """The transform of a named augmentation (or steps joined by `+`) and a named normalization."""
        if normalize not in NORMALIZATIONS:
            raise unknown("normalization", normalize, NORMALIZATIONS)
        mean, std = NORMALIZATIONS[normalize]
        return cls(mean, std, steps(augment))

    def replace(
        self, augment: str | None = None, normalize: str | None = None, dtype: torch.dtype | None = None
    ) -> Transform:
        """A copy with another named augmentation, normalization or dtype."""
        other = Transform.named(augment or "none", normalize or "unit")
        return Transform(
            self.mean if normalize is None else other.mean,
            self.std if normalize is None else other.std,
            self.augment if augment is None else other.augment,
            dtype or self.dtype,
        )

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse samples of a shape (without the batch) that this transform can't take."""
        if self.augment and len(shape) != 3:
            raise BadInput(f"augmentation {'+'.join(self.augment)} is for images, the samples have shape {shape}")
        if len(self.mean) > 1 and (not shape or shape[0] != len(self.mean)):
            raise BadInput(f"normalization for {len(self.mean)} channels does not fit samples of shape {shape}")
        for step in self.augment:
            name, number = _read(step)
            if name == "crop-reflect" and min(shape[1:]) <= number:
                raise BadInput(f"augmentation {step}: images of {shape[1]}x{shape[2]} are too small to reflect")

    def __call__(self, x: Tensor, key: Tensor | None = None) -> Tensor:
        """x: [B, …] as stored; key: int64 [B], one a sample, or None to normalize alone."""
        scale = 1.0 if x.is_floating_point() else 1 / 255
        if key is not None and self.augment:
            return self._normalized(self._augmented(x, key, scale), own=True)
        if scale == 1.0:
            return self._normalized(x.to(self.dtype), own=False)
        return self._normalized(x.to(self.dtype).mul_(scale), own=True)

    def _augmented(self, x: Tensor, key: Tensor, scale: float) -> Tensor:
        painted = False  # whether x is already floats in 0 … 1
        moves: list[tuple[Callable[[Grid, Tensor, float], Grid], Tensor, float]] = []
        for number, step in enumerate(self.augment):
            name, argument = _read(step)
            own = random.fold_in(key, number)
            if name in _MOVES:
                moves.append((_MOVES[name][0], own, argument))
                continue
            x = _move(x, moves)
            x = x if painted else x.to(self.dtype) * scale
            x, painted, moves = _PAINTS[name][0](x, own, argument), True, []
        x = _move(x, moves)
        return x if painted else x.to(self.dtype) * scale

    def _normalized(self, x: Tensor, own: bool) -> Tensor:
        """x less the mean, by the deviation; written over x where that is nobody else's."""
        if not self.mean or (self.mean == (0.0,) and self.std == (1.0,)):
            return x
        mean, std = self._constants(self.mean, x), self._constants(self.std, x)
        return (x.sub_(mean) if own else x - mean).div_(std)

    @staticmethod
    def _constants(values: tuple[float, ...], x: Tensor) -> Tensor | float:
        if len(values) == 1:
            return values[0]
        # filled on the device: a tensor made from a list would be copied from the host, which a CUDA graph forbids
        filled = torch.cat([torch.full((1,), v, dtype=x.dtype, device=x.device) for v in values])
        filled = filled.reshape(-1, *(1,) * (x.ndim - 2))
        if x.is_contiguous():
            return filled
        # Channels innermost: written out for one sample in its own order, else the inner loop would be that short.
        return torch.empty_like(x[0]).copy_(filled)


def steps(text: str) -> tuple[str, ...]:
    """The steps of a named augmentation, or of steps joined by `+`.

    >>> steps("flip + rotate(10)")
    ('flip', 'rotate(10)')
    """
    expanded = AUGMENTATIONS.get(text.strip(), text)
    found = tuple(part.strip() for part in expanded.split("+") if part.strip())
    for step in found:
        if re.match(r"[\w-]*", step)[0] not in STEPS:  # type: ignore[index] # the pattern matches any string
            raise unknown("augmentation", step, [*AUGMENTATIONS, *STEPS])
    return found


def _read(step: str) -> tuple[str, float]:
    """A step's name and its number, its default where none is given."""
    match = re.fullmatch(r"([\w-]+)(?:\((\d*\.?\d+)\))?", step)
    if not match or match[1] not in STEPS:
        raise unknown("augmentation step", step, STEPS)
    default = {**_MOVES, **_PAINTS}[match[1]][1]
    return match[1], float(match[2]) if match[2] else default


def _move(x: Tensor, moves: list[tuple[Callable[[Grid, Tensor, float], Grid], Tensor, float]]) -> Tensor:
    """Apply steps that move pixels: each output pixel is followed back through them, the last one first."""
    if not moves:
        return x
    grid = Grid.identity(x)
    for move, key, number in reversed(moves):
        grid = move(grid, key, number)
    return grid.gather(x)
