"""Residual networks of basic blocks: the CIFAR variants, and ResNet-18 with a small or a large stem."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.core.system.errors import BadInput
from fedhead.models.architectures.blocks import GlobalPool, Norm, conv_norm
from fedhead.models.registry import FeatureExtractor, Shape, Width, image, register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Norm = "batch"):
        super().__init__()
        self.first = conv_norm(in_channels, out_channels, 3, stride, norm=norm)
        self.second = conv_norm(out_channels, out_channels, 3, norm=norm)
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Identity() if same else conv_norm(in_channels, out_channels, 1, stride, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def stages(in_channels: int, widths: tuple[int, ...], blocks: tuple[int, ...], norm: Norm) -> list[nn.Module]:
    """Build stages of basic blocks; every stage but the first halves the image."""
    out: list[nn.Module] = []
    for index, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        first = BasicBlock(in_channels, width, 1 if index == 0 else 2, norm)
        out.append(nn.Sequential(first, *(BasicBlock(width, width, 1, norm) for _ in range(count - 1))))
        in_channels = width
    return out


def _cifar(name: str, shape: Shape, depth: int, norm: Norm, factor: int = 1) -> FeatureExtractor:
    """Build a network of depth 6n+2: a stem, then three stages of n blocks with 16, 32 and 64 channels (× `factor`)."""
    channels, _, _ = image(name, shape, least=4)
    n = (depth - 2) // 6
    widths = (16 * factor, 32 * factor, 64 * factor)
    stem = nn.Sequential(conv_norm(channels, widths[0], 3, norm=norm), nn.ReLU())
    return FeatureExtractor(nn.Sequential(stem, *stages(widths[0], widths, (n, n, n), norm), GlobalPool()), widths[-1])


@register("resnet20", "ResNet-20 for CIFAR: 16/32/64 channels, 64-d features; norm batch|group")
def resnet20(shape: Shape, norm: Norm = "batch") -> FeatureExtractor:
    """Build ResNet-20: three blocks per stage."""
    return _cifar("resnet20", shape, 20, norm)


@register("resnet32", "ResNet-32 for CIFAR: 16/32/64 channels, 64-d features; norm batch|group")
def resnet32(shape: Shape, norm: Norm = "batch") -> FeatureExtractor:
    """Build ResNet-32: five blocks per stage."""
    return _cifar("resnet32", shape, 32, norm)


@register("resnet56", "ResNet-56 for CIFAR: 16/32/64 channels, 64-d features; norm batch|group")
def resnet56(shape: Shape, norm: Norm = "batch") -> FeatureExtractor:
    """Build ResNet-56: nine blocks per stage."""
    return _cifar("resnet56", shape, 56, norm)


@register("wrn56_4", "ResNet-56 four times as wide: 64/128/256 channels, 256-d features; norm batch|group")
def wrn56_4(shape: Shape, norm: Norm = "batch") -> FeatureExtractor:
    """Build ResNet-56 with all widths times four."""
    return _cifar("wrn56_4", shape, 56, norm, factor=4)


@register("resnet18", "ResNet-18, 512-d features; stem 3x3 (FedETF) or 7x7 with max pooling (FedClassAvg, FedProto)")
def resnet18(
    shape: Shape,
    stem: Literal["3x3", "7x7"] = "3x3",
    strides: tuple[Width, Width] = (2, 2),
    norm: Norm = "batch",
) -> FeatureExtractor:
    """Build ResNet-18: two blocks per stage, 64 to 512 channels.

    `strides` are those of the convolution and the pooling of the 7x7 stem; FedProto's clients have (1, 4) or (2, 2).
    With that stem, the initial weights follow torchvision.
    """
    if stem == "3x3" and strides != (2, 2):
        raise BadInput(f"model resnet18: strides: {list(strides)} would have no effect with stem=3x3: set stem=7x7")
    channels, _, _ = image("resnet18", shape, least=8 if stem == "3x3" else 16)
    if stem == "3x3":
        first = nn.Sequential(conv_norm(channels, 64, 3, norm=norm), nn.ReLU())
    else:
        pool = nn.MaxPool2d(3, strides[1], padding=1)
        first = nn.Sequential(conv_norm(channels, 64, 7, strides[0], norm=norm), nn.ReLU(), pool)
    extractor = nn.Sequential(first, *stages(64, (64, 128, 256, 512), (2, 2, 2, 2), norm), GlobalPool())
    if stem == "7x7":  # torchvision's initialization, as in FedClassAvg
        for module in extractor.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return FeatureExtractor(extractor, 512)
