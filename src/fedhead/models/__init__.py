"""Models: any module in named parts, and the papers' architectures by name."""

from fedhead.models import (
    alexnet,
    densenet,
    efficientnet,
    googlenet,
    mlp,
    mobilenetv2,
    protocnn,
    resnet,
    shufflenetv2,
    simplecnn,
)
from fedhead.models.heads import HEADS
from fedhead.models.registry import MODELS, build, register
from fedhead.models.split import Split, classify, load, weights

# importing the architectures fills the registry
ARCHITECTURES = (
    alexnet,
    densenet,
    efficientnet,
    googlenet,
    mlp,
    mobilenetv2,
    protocnn,
    resnet,
    shufflenetv2,
    simplecnn,
)

__all__ = ["ARCHITECTURES", "HEADS", "MODELS", "Split", "build", "classify", "load", "register", "weights"]
