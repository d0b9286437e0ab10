"""Geometric augmentation by a grid of source pixels per sample, and resizing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.core.training import random


@dataclass(frozen=True)
class Grid:
    """Source row and column of every output pixel of every sample.

    Args:
        row: Source rows, int64, broadcastable to [B, H, W].
        col: Source columns, of the same type and shape.
        seen: Mask of the pixels inside the image, bool, of the same shape; others are black. None: all are inside.
        height: Height of the images.
        width: Width of the images.
    """

    row: Tensor
    col: Tensor
    seen: Tensor | None
    height: int
    width: int

    @classmethod
    def identity(cls, x: Tensor) -> Grid:
        """Return the grid that leaves images [B, C, H, W] unchanged."""
        height, width = x.shape[-2:]
        rows = torch.arange(height, device=x.device).reshape(1, height, 1)
        return cls(rows, torch.arange(width, device=x.device).reshape(1, 1, width), None, height, width)

    def within(self, row: Tensor, col: Tensor) -> Grid:
        """Return the grid with other source coordinates; pixels outside the image become black."""
        seen = (row >= 0) & (row < self.height) & (col >= 0) & (col < self.width)
        return replace(
            self,
            row=row.clamp(0, self.height - 1),
            col=col.clamp(0, self.width - 1),
            seen=seen if self.seen is None else seen & self.seen,
        )

    def gather(self, x: Tensor) -> Tensor:
        """Apply the grid to images [B, C, H, W]."""
        index = (self.row * self.width + self.col).flatten(1).unsqueeze(1)
        index = index.expand(x.shape[0], x.shape[1], index.shape[-1])
        out = x.flatten(2).gather(2, index).reshape(x.shape)
        return out if self.seen is None else out * self.seen.unsqueeze(1)


def crop(grid: Grid, key: Tensor, pad: int, reflect: bool) -> Grid:
    """Pad by `pad` pixels (reflected or black), then crop to the original size at a random position."""
    shift = (random.uniform(key, 2) * (2 * pad + 1)).long() - pad
    row, col = grid.row + _per_sample(shift[:, 0]), grid.col + _per_sample(shift[:, 1])
    if not reflect:
        return grid.within(row, col)
    return replace(grid, row=_mirror(row, grid.height), col=_mirror(col, grid.width))


def flip(grid: Grid, key: Tensor, probability: float) -> Grid:
    """Flip horizontally with a probability."""
    mirrored = _per_sample(random.uniform(key) < probability)
    return replace(grid, col=torch.where(mirrored, grid.width - 1 - grid.col, grid.col))


def rotate(grid: Grid, key: Tensor, degrees: float) -> Grid:
    """Rotate around the center by a random angle in ±degrees, with nearest pixels and black corners."""
    angle = _per_sample((random.uniform(key) * 2 - 1) * math.radians(degrees))
    y, x = grid.row - (grid.height - 1) / 2, grid.col - (grid.width - 1) / 2
    row = y * torch.cos(angle) + x * torch.sin(angle) + (grid.height - 1) / 2
    col = x * torch.cos(angle) - y * torch.sin(angle) + (grid.width - 1) / 2
    return grid.within(row.round().long(), col.round().long())


def resized_crop(x: Tensor, key: Tensor, smallest: float) -> Tensor:
    """Crop a random rectangle and resize it to the full size (bilinear), as torchvision's RandomResizedCrop.

    Draw ten rectangles and use the first that lies inside the image, or the whole image if all lie outside.

    Args:
        x: Images, [B, C, H, W].
        key: Random keys, [B].
        smallest: Smallest share of the image's area; the aspect ratio is between 3:4 and 4:3.
    """
    height, width = x.shape[-2:]
    draw = random.uniform(key, 10, 4).to(x.dtype)
    area = (smallest + (1 - smallest) * draw[..., 0]) * height * width
    ratio = torch.exp((draw[..., 1] * 2 - 1) * math.log(4 / 3))
    h, w = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    first = fits.to(torch.int64).argmax(dim=1, keepdim=True)  # argmax of booleans: the first draw that fits
    some = fits.any(dim=1)
    h = torch.where(some, h.gather(1, first).squeeze(1), float(height))
    w = torch.where(some, w.gather(1, first).squeeze(1), float(width))
    top = (draw[..., 2].gather(1, first).squeeze(1) * (height - h + 1)).floor()
    left = (draw[..., 3].gather(1, first).squeeze(1) * (width - w + 1)).floor()
    return _stretch(_stretch(x, top, h).transpose(2, 3), left, w).transpose(2, 3)


def resize(x: Tensor, side: int, clamp: bool) -> Tensor:
    """Resize images to side × side by bicubic interpolation, smoothed where they shrink, as Pillow does.

    Args:
        x: Images of floating-point numbers, [B, C, H, W].
        side: Height and width of the result.
        clamp: Whether to keep the result in 0 … 1; cubic interpolation overshoots at edges.

    Returns:
        Images, [B, C, side, side].
    """
    resized = F.interpolate(x, size=(side, side), mode="bicubic", antialias=True, align_corners=False)
    return resized.clamp_(0, 1) if clamp else resized


def _stretch(x: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Stretch rows start … start+length of each image over its full height (pixel centers, edges repeated)."""
    n = x.shape[2]
    start, length = start.unsqueeze(1), length.unsqueeze(1)
    at = (torch.arange(n, device=x.device).to(x.dtype) + 0.5) * (length / n) - 0.5
    low = at.floor()
    part = (at - low).unsqueeze(1).unsqueeze(3)
    last = length - 1

    def rows(index: Tensor) -> Tensor:
        index = (start + torch.minimum(index.clamp(min=0), last)).long()
        return x.gather(2, index.unsqueeze(1).unsqueeze(3).expand(x.shape))

    return torch.lerp(rows(low), rows(low + 1), part.expand(x.shape))


def _per_sample(values: Tensor) -> Tensor:
    """Reshape one value per sample to broadcast over [B, H, W]."""
    return values.reshape(-1, 1, 1)


def _mirror(index: Tensor, size: int) -> Tensor:
    """Reflect indices outside 0 … size-1 at the edge pixels."""
    index = index.abs()
    return torch.where(index > size - 1, 2 * (size - 1) - index, index)
