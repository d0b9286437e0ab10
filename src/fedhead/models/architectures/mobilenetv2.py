"""MobileNetV2 for CIFAR: the stem and the second stage keep the image's size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, cast

from torch import Tensor, nn

from fedhead.models.architectures.blocks import GlobalPool, conv_norm
from fedhead.models.registry import FeatureExtractor, Shape, image, register

# expansion, channels, blocks, stride of the first block; all kernels are 3x3
BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class SqueezeExcitation(nn.Module):
    """Squeeze and excitation: scales each channel by a factor in (0, 1) computed from the means of all channels."""

    def __init__(self, channels: int, inner: int, activation: Callable[[], nn.Module]):
        super().__init__()
        self.gate = nn.Sequential(
            nn.Conv2d(channels, inner, 1), activation(), nn.Conv2d(inner, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled image."""
        return x * cast(Tensor, self.gate(x.mean(dim=(2, 3), keepdim=True)))


class InvertedResidual(nn.Module):
    """Inverted residual block: expansion, depthwise convolution, projection, and a shortcut at stride 1.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        expansion: Factor by which the first convolution widens the input.
        kernel: Kernel size of the depthwise convolution.
        stride: Stride of the depthwise convolution.
        shortcut: "identity" adds the input if it has the output's shape. "projection" also applies a 1x1 convolution if
            only the channels differ, and keeps the expanding convolution even at expansion 1.
        activation: Activation layer.
        squeeze: Width of squeeze and excitation relative to the expanded channels; 0 for none.
        conv: Convolution with its normalization.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        expansion: int,
        kernel: int,
        stride: int,
        shortcut: Literal["identity", "projection"],
        activation: Callable[[], nn.Module],
        squeeze: float = 0.0,
        conv: Callable[..., nn.Module] = conv_norm,
    ):
        super().__init__()
        width = expansion * in_channels
        layers: list[nn.Module] = []
        if expansion > 1 or shortcut == "projection":
            layers += [conv(in_channels, width, 1), activation()]
        layers += [conv(width, width, kernel, stride, groups=width), activation()]
        if squeeze:
            layers.append(SqueezeExcitation(width, int(width * squeeze), activation))
        self.body = nn.Sequential(*layers, conv(width, out_channels, 1))
        self.shortcut: nn.Module | None = None
        if stride == 1 and in_channels == out_channels:
            self.shortcut = nn.Identity()
        elif stride == 1 and shortcut == "projection":
            self.shortcut = conv(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        y = cast(Tensor, self.body(x))
        return y if self.shortcut is None else y + cast(Tensor, self.shortcut(x))


def residual_stages(
    blocks: Iterable[tuple[int, ...]], in_channels: int, make: Callable[..., InvertedResidual]
) -> list[nn.Module]:
    """Build stages of blocks (expansion, channels, count, kernel, stride); all but a stage's first have stride 1."""
    layers: list[nn.Module] = []
    for expansion, channels, count, kernel, stride in blocks:
        for index in range(count):
            layers.append(make(in_channels, channels, expansion, kernel, stride if index == 0 else 1))
            in_channels = channels
    return layers


@register("mobilenetv2", "MobileNetV2 for CIFAR (CCVR Table 7), 1280-d features; form ccvr|fedetf")
def mobilenetv2(shape: Shape, form: Literal["ccvr", "fedetf"] = "ccvr") -> FeatureExtractor:
    """Build MobileNetV2 of width 1.0 with depthwise convolutions.

    `ccvr` is Table 7 of CCVR with identity shortcuts and MobileNetV2's own ReLU6; `fedetf` is the network behind
    FedETF's Table 3, with ReLU and projection shortcuts.
    """
    in_channels, _, _ = image("mobilenetv2", shape, least=8)
    activation = nn.ReLU6 if form == "ccvr" else nn.ReLU
    shortcut: Literal["identity", "projection"] = "identity" if form == "ccvr" else "projection"
    stem = nn.Sequential(conv_norm(in_channels, 32, 3), activation())
    blocks = ((*block[:3], 3, block[3]) for block in BLOCKS)
    stages = residual_stages(blocks, 32, partial(InvertedResidual, shortcut=shortcut, activation=activation))
    last = nn.Sequential(conv_norm(320, 1280, 1), activation())
    return FeatureExtractor(nn.Sequential(stem, *stages, last, GlobalPool()), 1280)
