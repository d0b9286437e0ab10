"""What pretrained models have in common: files of other packages, and batch normalization that stays as it is."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedhead.core.errors import BadInput


def package_folder(package: str, extra: str) -> Path:
    """Return the folder of an installed package, without importing it.

    Args:
        package: Name of the package.
        extra: The extra of fedhead that brings it.

    Raises:
        BadInput: If it is not installed.
    """
    found = util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise BadInput(f"the package {package} is not installed: pip install 'fedhead[{extra}]'")
    return Path(found.submodule_search_locations[0])


class FixedBatchNorm2d(nn.Module):
    """Batch normalization by running statistics alone, in training too, so that they stay those of the pretraining.

    Clients' batches are small and differ in their classes: their own statistics would give each client other features.

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


def fix_batch_norm(module: nn.Module) -> nn.Module:
    """Replace the BatchNorm2d layers of a module, in place, by ones that keep their running statistics.

    Args:
        module: The module.

    Returns:
        The module, or the layer that takes its place.
    """
    if type(module) is nn.BatchNorm2d and module.running_mean is not None and module.affine:
        made = FixedBatchNorm2d(module.num_features, module.eps)
        made.load_state_dict({name: t for name, t in module.state_dict().items() if name != "num_batches_tracked"})
        return made
    for name, child in module.named_children():
        setattr(module, name, fix_batch_norm(child))
    return module
