"""AlexNet in FedClassAvg's small form."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.models.dropout import Dropout
from fedhead.models.registry import DropRate, FeatureExtractor, Shape, image, register


class GridPool(nn.Module):
    """Average pooling to a `side` x `side` grid, flattened."""

    def __init__(self, side: int):
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, C * side * side]."""
        return F.adaptive_avg_pool2d(x, self.side).flatten(1)


@register("alexnet", "FedClassAvg's AlexNet: 64-128-256 channels, 512-d features; feature_layer=512 as in the paper")
def alexnet(shape: Shape, dropout: DropRate = 0.5) -> FeatureExtractor:
    """Build three 3x3 convolutions, average pooling to a 3x3 grid, dropout and a hidden layer of 512 units with ReLU.

    With `feature_layer=512` it has the second Linear(512, 512) of FedClassAvg's public code.
    """
    in_channels, _, _ = image("alexnet", shape, least=4)
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(in_channels, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, stride=1, padding=1)),
        nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, padding=1)),
        nn.Sequential(nn.Conv2d(128, 256, 3, padding=1), nn.ReLU()),
        nn.Sequential(GridPool(3), Dropout(dropout), nn.Linear(256 * 9, 512), nn.ReLU()),
    )
    return FeatureExtractor(extractor, 512)
