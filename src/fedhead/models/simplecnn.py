"""Small convolutional networks: CCVR's SimpleCNN (Table 6), and one for 8x8 digits."""

from __future__ import annotations

from torch import nn

from fedhead.models.registry import Body, Shape, image, register


@register("simplecnn", "CCVR's SimpleCNN (Table 6): LeNet with MOON's projection head, 256-d features")
def simplecnn(shape: Shape, features: int = 256) -> Body:
    """Layers 1 to 4 of Table 6 are the extractor (84-d), layers 5 and 6 the projection (256-d, no ReLU at its end).

    Table 6 pools after the ReLU. Here, as in `digitscnn`, the ReLU comes after the pooling: values and gradients are
    the same to the bit, as ReLU keeps the order of what is positive, and it has a quarter of the numbers to go through.
    """
    channels, height, width = image("simplecnn", shape, least=16)
    left = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)  # 5x5 on a 32x32 image, 400 numbers in all
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(16 * left, 120), nn.ReLU()),
        nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
    )
    projection = nn.Sequential(nn.Sequential(nn.Linear(84, 84), nn.ReLU()), nn.Linear(84, features))
    return Body(extractor, 84, projection, features)


@register("digitscnn", "two small convolutions for images from 4x4 up, such as the 8x8 digits")
def digitscnn(shape: Shape, channels: int = 16, features: int = 64) -> Body:
    """3x3 convolutions of `channels` and twice as many, each pooled to half the size, and one hidden layer."""
    entering, height, width = image("digitscnn", shape, least=4)
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(entering, channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(2 * channels * (height // 4) * (width // 4), features), nn.ReLU()),
    )
    return Body(extractor, features)
