"""Residual networks in their CIFAR form: a 3x3 stem, three stages of basic blocks, global pooling."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.models.blocks import GlobalPool, Norm, conv_norm
from fedhead.models.registry import Body, Shape, image, register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, entering: int, leaving: int, stride: int, norm: Norm = "batch"):
        super().__init__()
        self.first = conv_norm(entering, leaving, 3, stride, norm=norm)
        self.second = conv_norm(leaving, leaving, 3, norm=norm)
        same = stride == 1 and entering == leaving
        self.shortcut = nn.Identity() if same else conv_norm(entering, leaving, 1, stride, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def stages(entering: int, widths: tuple[int, ...], blocks: tuple[int, ...], norm: Norm) -> list[nn.Module]:
    """Stages of basic blocks; every stage but the first halves the image."""
    out: list[nn.Module] = []
    for place, (width, count) in enumerate(zip(widths, blocks, strict=True)):
        first = BasicBlock(entering, width, 1 if place == 0 else 2, norm)
        out.append(nn.Sequential(first, *(BasicBlock(width, width, 1, norm) for _ in range(count - 1))))
        entering = width
    return out


def _cifar(name: str, shape: Shape, depth: int, norm: Norm, factor: int = 1) -> Body:
    """Depth 6n+2: a stem, then three stages of n blocks with 16, 32 and 64 channels (times `factor`)."""
    channels, _, _ = image(name, shape, least=4)
    n = (depth - 2) // 6
    widths = (16 * factor, 32 * factor, 64 * factor)
    stem = nn.Sequential(conv_norm(channels, widths[0], 3, norm=norm), nn.ReLU())
    return Body(nn.Sequential(stem, *stages(widths[0], widths, (n, n, n), norm), GlobalPool()), widths[-1])


@register("resnet20", "ResNet-20 for CIFAR: 16/32/64 channels, 64-d features; norm batch|group")
def resnet20(shape: Shape, norm: Norm = "batch") -> Body:
    """Three blocks a stage."""
    return _cifar("resnet20", shape, 20, norm)


@register("resnet32", "ResNet-32 for CIFAR: 16/32/64 channels, 64-d features; norm batch|group")
def resnet32(shape: Shape, norm: Norm = "batch") -> Body:
    """Five blocks a stage."""
    return _cifar("resnet32", shape, 32, norm)


@register("resnet56", "ResNet-56 for CIFAR: 16/32/64 channels, 64-d features; norm batch|group")
def resnet56(shape: Shape, norm: Norm = "batch") -> Body:
    """Nine blocks a stage."""
    return _cifar("resnet56", shape, 56, norm)


@register("wrn56_4", "ResNet-56 four times as wide: 64/128/256 channels, 256-d features; norm batch|group")
def wrn56_4(shape: Shape, norm: Norm = "batch") -> Body:
    """Nine blocks a stage, all widths times four."""
    return _cifar("wrn56_4", shape, 56, norm, factor=4)
