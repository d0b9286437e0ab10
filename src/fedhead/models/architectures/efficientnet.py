"""EfficientNet-B0 for CIFAR: a stride-1 stem, squeeze and excitation, features directly from the last stage."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from fedhead.models.architectures.blocks import GlobalPool, conv_norm
from fedhead.models.architectures.mobilenetv2 import InvertedResidual, residual_stages
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


class DoubledResidual(InvertedResidual):
    """Inverted residual block that adds its output to itself where there is no shortcut, at stride 2."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = super().forward(x)
        return 2 * y if self.shortcut is None else y


@register("efficientnetb0", "EfficientNet-B0 for CIFAR as in FedETF: stride-1 stem, no dropout, 320-d features")
def efficientnetb0(shape: Shape, doubled: bool = False) -> FeatureExtractor:
    """Build the network behind FedETF's Table 3.

    Squeeze-and-excitation with a quarter of the expanded channels, projection shortcuts, SiLU.

    Args:
        shape: Shape of the inputs.
        doubled: Whether blocks of stride 2 double their output, as in FedETF's public code.
    """
    in_channels, _, _ = image("efficientnetb0", shape, least=16)
    stem = nn.Sequential(conv_norm(in_channels, 32, 3), nn.SiLU())
    block = partial(
        DoubledResidual if doubled else InvertedResidual, shortcut="projection", activation=nn.SiLU, squeeze=0.25
    )
    return FeatureExtractor(nn.Sequential(stem, *residual_stages(BLOCKS, 32, block), GlobalPool()), 320)
