"""Building blocks of convolutional architectures: normalization, convolution with normalization, global pooling."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

Norm = Literal["batch", "group"]


def norm2d(kind: Norm, channels: int) -> nn.Module:
    """Return BatchNorm, or GroupNorm with 8 groups (fewer if 8 does not divide the channels)."""
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(math.gcd(channels, 8), channels)


def conv_norm(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1, norm: Norm = "batch"
) -> nn.Sequential:
    """Return a convolution without bias, padded to keep the image size at stride 1, followed by its normalization."""
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm2d(norm, out_channels))


class GlobalPool(nn.Module):
    """Global average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, C]."""
        return x.mean(dim=(2, 3))
