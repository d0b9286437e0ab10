"""Replacement of layers so that a module runs identically on every executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedhead.core.system.errors import BadInput
from fedhead.models.dropout import Dropout

M = TypeVar("M", bound=nn.Module)
PLAIN_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
TRACKING_NORM = nn.modules.batchnorm._NormBase  # BatchNorm and InstanceNorm, which have batch counters


def fix(model: M) -> M:
    """Replace layers, in place, that keep a model from running identically on every executor.

    Dropout layers are replaced by ones that draw masks by key. BatchNorm layers lose their batch counter, which is not
    part of a model's weights. Parameters are converted to torch's default dtype.

    Args:
        model: Any module.

    Returns:
        The same module.

    Raises:
        BadInput: If a BatchNorm layer has no running statistics, or no momentum.
    """
    swaps: dict[nn.Module, Dropout] = {}  # a shared module is replaced by one module
    for module in list(model.modules()):
        for name, child in module._modules.items():
            if isinstance(child, PLAIN_DROPOUT):
                whole = not isinstance(child, nn.Dropout)
                setattr(module, name, swaps.setdefault(child, Dropout(child.p, channels=whole)))
        if isinstance(module, TRACKING_NORM):
            _fix_norm(module)
    if any(t.is_floating_point() and t.dtype != torch.get_default_dtype() for t in tensors_of(model)):
        model.to(torch.get_default_dtype())
    return model


def _fix_norm(module: nn.modules.batchnorm._NormBase) -> None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not module.track_running_stats:
        raise BadInput(
            "BatchNorm with track_running_stats=False: the test of a sample would depend on its batch; make it True"
        )
    if module.momentum is None:
        raise BadInput(
            f"{type(module).__name__} with momentum=None: a mean over all batches needs a counter, which a model's "
            "weights do not hold; give a number, such as momentum=0.1"
        )
    module.num_batches_tracked = None


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module."""
    yield from model.parameters()
    yield from model.buffers()
