"""Moving pixels: which source pixel each output pixel shows, one grid a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedhead.core import random


@dataclass(frozen=True)
class Grid:
    """For every output pixel of every sample: its row and column in the source, and whether it shows anything."""

    row: Tensor  # int64, broadcastable to [B, H, W]
    col: Tensor
    seen: Tensor | None  # bool, alike; None: all pixels are seen, others are black
    height: int
    width: int

    @classmethod
    def identity(cls, x: Tensor) -> Grid:
        """The grid that changes nothing in images [B, C, H, W]."""
        height, width = x.shape[-2:]
        rows = torch.arange(height, device=x.device).reshape(1, height, 1)
        return cls(rows, torch.arange(width, device=x.device).reshape(1, 1, width), None, height, width)

    def within(self, row: Tensor, col: Tensor) -> Grid:
        """The grid at other places; those outside the image are not seen."""
        seen = (row >= 0) & (row < self.height) & (col >= 0) & (col < self.width)
        return replace(
            self,
            row=row.clamp(0, self.height - 1),
            col=col.clamp(0, self.width - 1),
            seen=seen if self.seen is None else seen & self.seen,
        )

    def gather(self, x: Tensor) -> Tensor:
        """The images [B, C, H, W] as the grid shows them."""
        place = (self.row * self.width + self.col).flatten(1).unsqueeze(1)
        place = place.expand(x.shape[0], x.shape[1], place.shape[-1])
        out = x.flatten(2).gather(2, place).reshape(x.shape)
        return out if self.seen is None else out * self.seen.unsqueeze(1)


def crop(grid: Grid, key: Tensor, pad: int, reflect: bool) -> Grid:
    """Pad by `pad` pixels (mirrored or black), then cut the old size out at a random place."""
    shift = (random.uniform(key, 2) * (2 * pad + 1)).long() - pad
    row, col = grid.row + _each(shift[:, 0]), grid.col + _each(shift[:, 1])
    if not reflect:
        return grid.within(row, col)
    return replace(grid, row=_mirror(row, grid.height), col=_mirror(col, grid.width))


def flip(grid: Grid, key: Tensor, probability: float) -> Grid:
    """Mirror left and right with a probability."""
    mirrored = _each(random.uniform(key) < probability)
    return replace(grid, col=torch.where(mirrored, grid.width - 1 - grid.col, grid.col))


def rotate(grid: Grid, key: Tensor, degrees: float) -> Grid:
    """Turn about the center by an angle in ±degrees, nearest pixels, black corners."""
    angle = _each((random.uniform(key) * 2 - 1) * math.radians(degrees))
    y, x = grid.row - (grid.height - 1) / 2, grid.col - (grid.width - 1) / 2
    row = y * torch.cos(angle) + x * torch.sin(angle) + (grid.height - 1) / 2
    col = x * torch.cos(angle) - y * torch.sin(angle) + (grid.width - 1) / 2
    return grid.within(row.round().long(), col.round().long())


def cutout(grid: Grid, key: Tensor, side: int) -> Grid:
    """Blacken a square of that side about a random pixel; it may reach over the edge (DeVries and Taylor, 2017)."""
    place = random.uniform(key, 2)
    top = _each((place[:, 0] * grid.height).long()) - side // 2
    left = _each((place[:, 1] * grid.width).long()) - side // 2
    inside = (grid.row >= top) & (grid.row < top + side) & (grid.col >= left) & (grid.col < left + side)
    return replace(grid, seen=~inside if grid.seen is None else grid.seen & ~inside)


def resized_crop(x: Tensor, key: Tensor, smallest: float) -> Tensor:
    """Cut out a random rectangle of `smallest` … 1 of the area, sides 3:4 … 4:3, and blow it up (bilinear).

    As in torchvision's RandomResizedCrop: ten draws, the first that fits counts; else the whole image.
    """
    height, width = x.shape[-2:]
    draw = random.uniform(key, 10, 4).to(x.dtype)
    area = (smallest + (1 - smallest) * draw[..., 0]) * height * width
    ratio = torch.exp((draw[..., 1] * 2 - 1) * math.log(4 / 3))
    h, w = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
    fits = (h >= 1) & (h <= height) & (w >= 1) & (w <= width)
    first = fits.to(torch.int64).argmax(dim=1, keepdim=True)  # the first of the largest: the first that fits
    some = fits.any(dim=1)
    h = torch.where(some, h.gather(1, first).squeeze(1), float(height))
    w = torch.where(some, w.gather(1, first).squeeze(1), float(width))
    top = (draw[..., 2].gather(1, first).squeeze(1) * (height - h + 1)).floor()
    left = (draw[..., 3].gather(1, first).squeeze(1) * (width - w + 1)).floor()
    return _stretch(_stretch(x, top, h).transpose(2, 3), left, w).transpose(2, 3)


def _stretch(x: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Rows start … start+length of each image, stretched over its full height (pixel centers, edges held)."""
    n = x.shape[2]
    start, length = start.unsqueeze(1), length.unsqueeze(1)
    at = (torch.arange(n, device=x.device).to(x.dtype) + 0.5) * (length / n) - 0.5
    low = at.floor()
    part = (at - low).unsqueeze(1).unsqueeze(3)
    last = length - 1

    def rows(place: Tensor) -> Tensor:
        index = (start + torch.minimum(place.clamp(min=0), last)).long()
        return x.gather(2, index.unsqueeze(1).unsqueeze(3).expand(x.shape))

    return torch.lerp(rows(low), rows(low + 1), part.expand(x.shape))


def _each(values: Tensor) -> Tensor:
    """One value a sample, to meet [B, H, W]."""
    return values.reshape(-1, 1, 1)


def _mirror(place: Tensor, size: int) -> Tensor:
    """Places outside 0 … size-1, mirrored at the edge pixels."""
    place = place.abs()
    return torch.where(place > size - 1, 2 * (size - 1) - place, place)
