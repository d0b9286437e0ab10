"""ShuffleNetV2 ×1.0, one of FedClassAvg's four architectures, at the images' original size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedhead.models.architectures.blocks import GlobalPool, conv_norm
from fedhead.models.registry import FeatureExtractor, Shape, image, register


class ShuffleUnit(nn.Module):
    """Two branches whose output channels are interleaved.

    At stride 1 one branch is the unchanged first half of the input; at stride 2 both are convolved.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        half = out_channels // 2
        self.halves = stride == 1
        inner = half if self.halves else in_channels
        self.right = nn.Sequential(
            conv_norm(inner, half, 1), nn.ReLU(), conv_norm(half, half, 3, stride, groups=half),
            conv_norm(half, half, 1), nn.ReLU(),
        )  # fmt: skip
        self.left: nn.Module = nn.Identity()
        if not self.halves:
            depthwise = conv_norm(in_channels, in_channels, 3, stride, groups=in_channels)
            self.left = nn.Sequential(depthwise, conv_norm(in_channels, half, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Return the unit's output."""
        left, right = x.chunk(2, dim=1) if self.halves else (x, x)
        pair = torch.stack([self.left(left), self.right(right)], dim=2)  # [B, half, 2, H, W]: left, right, left …
        return pair.flatten(1, 2)


@register("shufflenetv2", "ShuffleNetV2 x1.0 (FedClassAvg), 1024-d features; feature_layer=512 as in the paper")
def shufflenetv2(shape: Shape) -> FeatureExtractor:
    """Build a stem of 24 channels, stages with 116, 232 and 464 channels, and a 1x1 convolution to 1024."""
    in_channels, _, _ = image("shufflenetv2", shape, least=16)
    layers: list[nn.Module] = [
        nn.Sequential(conv_norm(in_channels, 24, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
    ]
    before = 24
    for channels, units in ((116, 4), (232, 8), (464, 4)):
        first = ShuffleUnit(before, channels, 2)
        layers.append(nn.Sequential(first, *(ShuffleUnit(channels, channels, 1) for _ in range(units - 1))))
        before = channels
    layers += [nn.Sequential(conv_norm(before, 1024, 1), nn.ReLU()), GlobalPool()]
    return FeatureExtractor(nn.Sequential(*layers), 1024)
