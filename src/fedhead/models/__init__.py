"""Models: any module in named parts, and the papers' architectures by name."""

from fedhead.models.heads import HEADS
from fedhead.models.registry import MODELS, Architecture, build, register
from fedhead.models.split_model import SplitModel, classify, load, weights

__all__ = ["HEADS", "MODELS", "Architecture", "SplitModel", "build", "classify", "load", "register", "weights"]
