"""Why a module can't be trained functionally or vectorised, in words, and the mends that can be made."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from fedhead.models.dropout import Dropout

M = TypeVar("M", bound=nn.Module)


def mend(model: M) -> M:
    """Repair, in place, what would keep a model from running alike on every executor.

    Dropout comes to draw by key; BatchNorm keeps its running statistics with a plain momentum and loses its counter
    of batches, which is not part of a model's weights.
    """
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(module, name, Dropout(child.p, channels=not isinstance(child, nn.Dropout)))
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            _mend_batchnorm(module)
    return model


def _mend_batchnorm(module: nn.modules.batchnorm._BatchNorm) -> None:
    if module.momentum is None:
        module.momentum = 0.1  # a cumulative average needs the counter; torch's default does not
    module.num_batches_tracked = None
