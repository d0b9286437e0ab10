"""Models: any module in named parts, and the papers' architectures by name."""

import importlib
import pkgutil

from fedhead.models.heads import HEADS
from fedhead.models.registry import MODELS, build, register
from fedhead.models.split_model import SplitModel, classify, load, weights

# importing the architectures, one file each, fills the registry
for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["HEADS", "MODELS", "SplitModel", "build", "classify", "load", "register", "weights"]
