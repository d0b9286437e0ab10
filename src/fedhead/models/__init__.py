"""Models: any module in named parts, and the papers' architectures by name."""

from fedhead.models import mlp, resnet, simplecnn
from fedhead.models.heads import HEADS
from fedhead.models.registry import MODELS, build, register
from fedhead.models.split import Split, classify, load, weights

ARCHITECTURES = (mlp, resnet, simplecnn)  # importing them fills the registry

__all__ = ["ARCHITECTURES", "HEADS", "MODELS", "Split", "build", "classify", "load", "register", "weights"]
