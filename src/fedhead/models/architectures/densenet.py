"""DenseNet-121 for CIFAR: a 3x3 stem, no pooling before the first block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedhead.models.architectures.blocks import GlobalPool
from fedhead.models.registry import FeatureExtractor, Shape, Width, image, register


def _norm_relu_conv(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False)
    return nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(), conv)


class DenseLayer(nn.Module):
    """Bottleneck whose output is concatenated with its input."""

    def __init__(self, in_channels: int, growth: int):
        super().__init__()
        self.body = nn.Sequential(_norm_relu_conv(in_channels, 4 * growth, 1), _norm_relu_conv(4 * growth, growth, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Return the input with `growth` additional channels."""
        return torch.cat([self.body(x), x], dim=1)


@register("densenet121", "DenseNet-121 for CIFAR: growth 32, blocks of 6/12/24/16 layers, 1024-d features")
def densenet121(shape: Shape, growth: Width = 32, blocks: tuple[Width, ...] = (6, 12, 24, 16)) -> FeatureExtractor:
    """Build dense blocks, with transitions between them that halve the channels and the image."""
    in_channels, _, _ = image("densenet121", shape, least=2 ** (len(blocks) - 1))
    width = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(in_channels, width, 3, padding=1, bias=False)]
    for index, count in enumerate(blocks):
        layers.append(nn.Sequential(*(DenseLayer(width + i * growth, growth) for i in range(count))))
        width += count * growth
        if index < len(blocks) - 1:
            layers.append(nn.Sequential(_norm_relu_conv(width, width // 2, 1), nn.AvgPool2d(2)))
            width //= 2
    return FeatureExtractor(nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), GlobalPool()), width)
