"""MobileNetV2 in its CIFAR form: the stem and the second stage keep the image's size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

from torch import Tensor, nn

from fedhead.models.blocks import GlobalPool, conv_norm
from fedhead.models.registry import Body, Shape, image, register

# expansion, channels, blocks, stride of the first block
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Squeeze(nn.Module):
    """Squeeze and excitation: every channel is scaled by a number in (0, 1) that depends on all channels' means."""

    def __init__(self, channels: int, inner: int, activation: Callable[[], nn.Module]):
        super().__init__()
        self.gate = nn.Sequential(
            nn.Conv2d(channels, inner, 1), activation(), nn.Conv2d(inner, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        """The scaled image."""
        return x * cast(Tensor, self.gate(x.mean(dim=(2, 3), keepdim=True)))


class InvertedResidual(nn.Module):
    """Expand, convolve each channel by itself, project; with a shortcut where the size stays.

    `shortcut="identity"` adds the input where it has the output's shape. `shortcut="projection"` also sends it through
    a 1x1 convolution where only the channels differ, and keeps the expanding convolution even at expansion 1.
    """

    def __init__(
        self,
        entering: int,
        leaving: int,
        expansion: int,
        stride: int,
        shortcut: Literal["identity", "projection"],
        activation: Callable[[], nn.Module],
        kernel: int = 3,
        squeeze: float = 0.0,
    ):
        super().__init__()
        width = expansion * entering
        layers: list[nn.Module] = []
        if expansion > 1 or shortcut == "projection":
            layers += [conv_norm(entering, width, 1), activation()]
        layers += [conv_norm(width, width, kernel, stride, groups=width), activation()]
        if squeeze:
            layers.append(Squeeze(width, int(width * squeeze), activation))
        self.body = nn.Sequential(*layers, conv_norm(width, leaving, 1))
        self.shortcut: nn.Module | None = None
        if stride == 1 and entering == leaving:
            self.shortcut = nn.Identity()
        elif stride == 1 and shortcut == "projection":
            self.shortcut = conv_norm(entering, leaving, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = cast(Tensor, self.body(x))
        return y if self.shortcut is None else y + cast(Tensor, self.shortcut(x))


@register("mobilenetv2", "MobileNetV2 for CIFAR (CCVR Table 7), 1280-d features; form ccvr|fedetf")
def mobilenetv2(shape: Shape, form: Literal["ccvr", "fedetf"] = "ccvr") -> Body:
    """Width 1.0 with true depthwise convolutions.

    `ccvr` is Table 7 with identity shortcuts and MobileNetV2's own ReLU6; `fedetf` is the form behind FedETF's Table 3,
    with ReLU and projection shortcuts.
    """
    entering, _, _ = image("mobilenetv2", shape, least=8)
    activation = nn.ReLU6 if form == "ccvr" else nn.ReLU
    shortcut: Literal["identity", "projection"] = "identity" if form == "ccvr" else "projection"
    layers: list[nn.Module] = [nn.Sequential(conv_norm(entering, 32, 3), activation())]
    before = 32
    for expansion, channels, count, first in STAGES:
        for place in range(count):
            stride = first if place == 0 else 1
            layers.append(InvertedResidual(before, channels, expansion, stride, shortcut, activation))
            before = channels
    layers += [nn.Sequential(conv_norm(before, 1280, 1), activation()), GlobalPool()]
    return Body(nn.Sequential(*layers), 1280)
