"""FedProto's two-layer networks, which differ between clients only in their channels."""

from __future__ import annotations

from torch import nn

from fedhead.models.dropout import Dropout
from fedhead.models.registry import Body, Shape, image, register


@register("protocnn", "FedProto's two convolutions, 50-d prototypes; channels 18|20|22 make clients differ")
def protocnn(shape: Shape, channels: int = 20, kernel: int = 5, dropout: float = 0.5) -> Body:
    """Convolutions of 10 and `channels` channels, each pooled, and a hidden layer of 50: the prototypes are its output.

    `kernel` is the first convolution's (5 for MNIST, 3 for FEMNIST in the public code). The dropout behind the
    prototypes is the projection, so that h is the prototype's space and z what the classifier sees.
    """
    entering, height, width = image("protocnn", shape, least=16)
    left = [((side - kernel + 1) // 2 - 4) // 2 for side in (height, width)]
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(entering, 10, kernel), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(10, channels, 5), Dropout(dropout, channels=True), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(channels * left[0] * left[1], 50), nn.ReLU()),
    )
    return Body(extractor, 50, Dropout(dropout), 50)
