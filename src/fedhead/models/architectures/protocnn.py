"""FedProto's networks with two convolutions, whose channels differ between clients."""

from __future__ import annotations

from torch import nn

from fedhead.models.dropout import Dropout
from fedhead.models.registry import DropRate, FeatureExtractor, Shape, Width, image, register


@register("protocnn", "FedProto's two convolutions, 50-d prototypes; channels 18|20|22 make clients differ")
def protocnn(shape: Shape, channels: Width = 20, kernel: Width = 5, dropout: DropRate = 0.5) -> FeatureExtractor:
    """Build two convolutions of 10 and `channels` channels, each pooled, and a hidden layer of 50 units.

    `kernel` is the kernel size of the first convolution (5 for MNIST, 3 for FEMNIST in the public code). The
    hidden layer's output h is the space of the prototypes. The dropout after it is the projection to z, the input of
    the classifier.
    """
    in_channels, height, width = image("protocnn", shape, least=16)
    left = [((side - kernel + 1) // 2 - 4) // 2 for side in (height, width)]
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(in_channels, 10, kernel), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(10, channels, 5), Dropout(dropout, channels=True), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(channels * left[0] * left[1], 50), nn.ReLU()),
    )
    return FeatureExtractor(extractor, 50, Dropout(dropout), 50)
