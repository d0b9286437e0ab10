"""Shared code of pretrained models: library imports, and batch normalization with fixed statistics."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.core.system.errors import BadInput, first_line


class FixedBatchNorm2d(nn.Module):
    """Batch normalization with fixed, pretrained running statistics, also in training.

    Clients' batches are small and differ in their classes: batch statistics would give each client other features.

    Args:
        channels: Number of channels.
        eps: Added to the variance.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize a batch, [B, C, H, W]."""
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


def import_library(name: str, model: str, install: str) -> Any:
    """Import the library of a model.

    Raises:
        BadInput: If it can't be imported.
    """
    try:
        return import_module(name)
    except Exception as error:  # one of its dependencies may be broken, such as torchvision
        raise BadInput(
            f"model {model} needs the package {name}, which can't be imported here ({first_line(error)}): "
            f"pip install {install}"
        ) from error


def fix_batch_norm(module: nn.Module) -> nn.Module:
    """Fix the running statistics of a module's BatchNorm layers, in place.

    Args:
        module: The module.

    Returns:
        The module, or its replacement if it is a BatchNorm layer.
    """
    if type(module) is nn.BatchNorm2d and module.running_mean is not None and module.affine:
        fixed = FixedBatchNorm2d(module.num_features, module.eps)
        fixed.load_state_dict({name: t for name, t in module.state_dict().items() if name != "num_batches_tracked"})
        return fixed
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        kind: Any = _always_evaluating(type(module))
        module.__class__ = kind  # subclasses, such as those with a built-in activation
        return module.eval()
    for name, child in module.named_children():
        setattr(module, name, fix_batch_norm(child))
    return module


def _always_evaluating(kind: type[nn.Module]) -> type[nn.Module]:
    """Return a subclass of a layer that is never in training mode."""

    def train(self: nn.Module, mode: bool = True) -> Any:
        return kind.train(self, False)

    return type(f"Fixed{kind.__name__}", (kind,), {"train": train})
