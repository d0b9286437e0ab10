"""What convolutional architectures have in common: norms, convolutions followed by them, pooling to a vector."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

Norm = Literal["batch", "group"]


def norm2d(kind: Norm, channels: int) -> nn.Module:
    """BatchNorm, or GroupNorm in 8 groups (fewer where the channels don't divide)."""
    return nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(math.gcd(channels, 8), channels)


def conv_norm(
    entering: int, leaving: int, kernel: int, stride: int = 1, groups: int = 1, norm: Norm = "batch"
) -> nn.Sequential:
    """A convolution without bias that keeps the size (but for the stride), and its norm."""
    conv = nn.Conv2d(entering, leaving, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm2d(norm, leaving))


class GlobalPool(nn.Module):
    """The mean over all pixels: one number a channel."""

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C]."""
        return x.mean(dim=(2, 3))
