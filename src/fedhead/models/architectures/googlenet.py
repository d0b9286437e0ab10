"""GoogLeNet with BatchNorm, one of FedClassAvg's four architectures, at the images' original size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedhead.models.architectures.blocks import GlobalPool
from fedhead.models.dropout import Dropout
from fedhead.models.registry import DropRate, FeatureExtractor, Shape, image, register

# channels of the branches: 1x1 | 1x1 -> 3x3 | 1x1 -> second 3x3 | pooled 1x1; None: halve the image
MODULES: tuple[tuple[int, int, int, int, int, int] | None, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)
    # Initialization of torchvision's older releases, which FedClassAvg trains: truncated at two standard deviations.
    # The scale matters despite BatchNorm: Adam's steps don't depend on it, so smaller weights change faster.
    nn.init.trunc_normal_(conv.weight, std=0.01, a=-0.02, b=0.02)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels, eps=1e-3), nn.ReLU())


class Inception(nn.Module):
    """Four parallel branches whose outputs are concatenated."""

    def __init__(self, in_channels: int, widths: tuple[int, int, int, int, int, int]):
        super().__init__()
        width1, reduce3, width3, reduce5, width5, pooled = widths
        self.branches = nn.ModuleList(
            [
                _conv(in_channels, width1, 1),
                nn.Sequential(_conv(in_channels, reduce3, 1), _conv(reduce3, width3, 3)),
                # the paper has 5x5 here; the public implementation that FedClassAvg builds on has 3x3
                nn.Sequential(_conv(in_channels, reduce5, 1), _conv(reduce5, width5, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), _conv(in_channels, pooled, 1)),
            ]
        )
        self.out_channels = width1 + width3 + width5 + pooled

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenated channels of all branches."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


@register("googlenet", "GoogLeNet with BatchNorm (FedClassAvg), 1024-d features; feature_layer=512 as in the paper")
def googlenet(shape: Shape, dropout: DropRate = 0.2) -> FeatureExtractor:
    """Build nine inception modules after a 7x7 stem, without auxiliary outputs, which FedClassAvg ignores."""
    in_channels, _, _ = image("googlenet", shape, least=16)
    layers: list[nn.Module] = [
        nn.Sequential(_conv(in_channels, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True)),
        nn.Sequential(_conv(64, 64, 1), _conv(64, 192, 3), nn.MaxPool2d(3, 2, ceil_mode=True)),
    ]
    before, pools = 192, [nn.MaxPool2d(3, 2, ceil_mode=True), nn.MaxPool2d(2, 2, ceil_mode=True)]
    for widths in MODULES:
        if widths is None:
            layers.append(pools.pop(0))
        else:
            module = Inception(before, widths)
            layers.append(module)
            before = module.out_channels
    return FeatureExtractor(nn.Sequential(*layers, GlobalPool(), Dropout(dropout)), before)
