"""Color augmentation: jitter and grayscale of images in 0 … 1, drawn per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from fedhead.core.training import random


def jitter(x: Tensor, key: Tensor, probability: float) -> Tensor:
    """Change brightness, contrast, saturation and hue by random factors in random order (torchvision's ColorJitter).

    The largest changes are those of SimCLR on CIFAR-10: 0.4 for brightness, contrast and saturation, 0.1 for hue.

    Args:
        x: Images, [B, C, H, W].
        key: Random keys, [B].
        probability: Probability that an image is changed.
    """
    draw = random.uniform(key, 9).to(x.dtype)
    strength = 0.4 * (2 * draw[:, :3] - 1)
    time, hue_time = draw[:, 4:7], draw[:, 7:8]  # the changes are applied in the order of these times
    order = time.argsort(dim=1)
    out = x
    for after_hue in (False, True):  # the costly hue shift runs once; the other changes come before or after it
        if after_hue:
            out = shift_hue(out, 0.1 * (2 * draw[:, 3] - 1))
        for position in range(3):
            change = order[:, position : position + 1]
            now = (time.gather(1, change) > hue_time) == after_hue
            out = _blend(out, change, torch.where(now, strength.gather(1, change), 0.0))
    return torch.where(_per_sample(draw[:, 8] < probability), out, x)


def _blend(x: Tensor, change: Tensor, strength: Tensor) -> Tensor:
    """Change brightness (0), contrast (1) or saturation (2) by moving pixels away from (or to) black or gray."""
    gray = luma(x)
    mean = gray.mean(dim=(2, 3), keepdim=True)
    other = torch.where(_per_sample(change == 2), gray, torch.where(_per_sample(change == 1), mean, 0.0))
    return (x + _per_sample(strength) * (x - other)).clamp(0, 1)


def grayscale(x: Tensor, key: Tensor, probability: float) -> Tensor:
    """Convert each image to grayscale with a probability."""
    return torch.where(_per_sample(random.uniform(key) < probability), luma(x).expand(x.shape), x)


def luma(x: Tensor) -> Tensor:
    """Return the brightness of each pixel, [B, 1, H, W] (ITU-R 601 weights)."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def shift_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue of each image by a share of the color circle, [B]."""
    if x.shape[1] != 3:
        return x
    r, g, b = x.unbind(dim=1)
    value, low = x.amax(dim=1), x.amin(dim=1)
    chroma = value - low
    safe = torch.where(chroma > 0, chroma, 1.0)
    sector = torch.where(
        value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe)
    )  # in sixths of the circle
    sector = sector + 6 * turn.reshape(-1, 1, 1)

    def channel(offset: int) -> Tensor:
        # HSV to RGB without cases: f(n) = V - C·max(0, min(k, 4-k, 1)), k = (n + H/60°) mod 6
        k = torch.remainder(sector + offset, 6.0)
        return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)

    return torch.stack((channel(5), channel(3), channel(1)), dim=1)


def _per_sample(values: Tensor) -> Tensor:
    """Reshape one value per sample to broadcast over [B, C, H, W]."""
    return values.reshape(-1, 1, 1, 1)
