"""Layers made for stacks of clients, in place of those that `vmap` makes of the ordinary ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedhead.executors.kernels import convolve, linear, normalize


class StackedLayers(TorchFunctionMode):
    """Within this context, plain convolutions, small linear layers and batch norms under `vmap` run as one."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over the layers that have a form of their own for stacks; leave all else as it is."""
        if func is F.batch_norm:
            return normalize.batch_norm(*args, **(kwargs or {}))
        if func is F.linear and linear.takes(*args[:2]):
            return linear.linear(*args, **(kwargs or {}))
        if func is torch.conv2d and not kwargs and len(args) == 7 and convolve.takes(args[0], *args[3:]):
            return convolve.conv2d(*args[:5])
        return func(*args, **(kwargs or {}))


def stacked_layers(device: torch.device) -> AbstractContextManager[object]:
    """Layers made for stacks where they are faster: on a GPU."""
    return StackedLayers() if device.type == "cuda" else nullcontext()
