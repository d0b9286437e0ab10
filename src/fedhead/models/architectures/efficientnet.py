"""EfficientNet-B0 for CIFAR: a stride-1 stem, squeeze and excitation, features directly from the last stage."""

from __future__ import annotations

from torch import nn

from fedhead.models.architectures.blocks import GlobalPool, conv_norm
from fedhead.models.architectures.mobilenetv2 import InvertedResidual
from fedhead.models.registry import FeatureExtractor, Shape, image, register

# expansion, channels, blocks, kernel, stride of the first block
BLOCKS = (
    (1, 16, 1, 3, 1),
    (6, 24, 2, 3, 2),
    (6, 40, 2, 5, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 3, 5, 1),
    (6, 192, 4, 5, 2),
    (6, 320, 1, 3, 1),
)


@register("efficientnetb0", "EfficientNet-B0 for CIFAR as in FedETF: stride-1 stem, no dropout, 320-d features")
def efficientnetb0(shape: Shape) -> FeatureExtractor:
    """Build the network behind FedETF's Table 3.

    Squeeze-and-excitation with a quarter of the expanded channels, projection shortcuts, SiLU.
    """
    in_channels, _, _ = image("efficientnetb0", shape, least=16)
    layers: list[nn.Module] = [nn.Sequential(conv_norm(in_channels, 32, 3), nn.SiLU())]
    before = 32
    for expansion, channels, count, kernel, first in BLOCKS:
        for index in range(count):
            stride = first if index == 0 else 1
            block = InvertedResidual(before, channels, expansion, stride, "projection", nn.SiLU, kernel, squeeze=0.25)
            layers.append(block)
            before = channels
    return FeatureExtractor(nn.Sequential(*layers, GlobalPool()), before)
