"""Small convolutional networks: CCVR's SimpleCNN (Table 6), FedAvg's, and one for 8x8 digits."""

from __future__ import annotations

from torch import nn

from fedhead.models.registry import FeatureExtractor, Shape, Width, image, register


@register("simplecnn", "CCVR's SimpleCNN (Table 6): LeNet with MOON's projection head, 256-d features")
def simplecnn(shape: Shape, features: Width = 256) -> FeatureExtractor:
    """Build CCVR's SimpleCNN.

    Layers 1 to 4 of Table 6 are the extractor (84 features), layers 5 and 6 the projection (256 features, no final
    ReLU). Table 6 pools after the ReLU. Here, as in `digitscnn`, the ReLU comes after the pooling, which processes a
    quarter of the elements. Values and gradients are bit-identical, since ReLU is monotonic.
    """
    channels, height, width = image("simplecnn", shape, least=16)
    left = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)  # 5x5 for a 32x32 image, 400 features in all
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 6, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(16 * left, 120), nn.ReLU()),
        nn.Sequential(nn.Linear(120, 84), nn.ReLU()),
    )
    projection = nn.Sequential(nn.Sequential(nn.Linear(84, 84), nn.ReLU()), nn.Linear(84, features))
    return FeatureExtractor(extractor, 84, projection, features)


@register("digitscnn", "two small convolutions for images from 4x4 up, such as the 8x8 digits")
def digitscnn(shape: Shape, channels: Width = 16, features: Width = 64) -> FeatureExtractor:
    """Build two 3x3 convolutions of `channels` and twice as many channels, each with pooling, and one hidden layer."""
    in_channels, height, width = image("digitscnn", shape, least=4)
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(in_channels, channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(2 * channels * (height // 4) * (width // 4), features), nn.ReLU()),
    )
    return FeatureExtractor(extractor, features)


@register("fedavgcnn", "the FedAvg paper's two 5x5 convolutions and 512 features, 1,663,370 weights for MNIST")
def fedavgcnn(shape: Shape) -> FeatureExtractor:
    """Build FedAvg's network (McMahan et al., 2017, Section 3): 32 and 64 channels, each pooled, then 512 units."""
    channels, height, width = image("fedavgcnn", shape, least=4)
    extractor = nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU()),
        nn.Sequential(nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU()),
    )
    return FeatureExtractor(extractor, 512)
