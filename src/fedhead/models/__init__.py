"""Models in named parts, and the registries of architectures and heads."""

from fedhead.models.heads import HEADS
from fedhead.models.registry import MODELS, Architecture, build, register
from fedhead.models.split_model import SplitModel, classify, load, weights

__all__ = ["HEADS", "MODELS", "Architecture", "SplitModel", "build", "classify", "load", "register", "weights"]
