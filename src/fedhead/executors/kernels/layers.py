"""Layers for stacks of clients, which replace those that `vmap` derives from torch's layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedhead.executors.kernels import batch_statistics, convolve, linear, normalize
from fedhead.models import batch_norm


class StackedLayers(TorchFunctionMode):
    """Context in which some layers under `vmap` use kernels for stacks, or kernels that `vmap` supports."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace layers that have a stacked implementation."""
        if func is F.batch_norm:
            with self:  # batch_norm calls the two functions below
                return batch_norm.batch_norm(*args, **(kwargs or {}))
        if func is batch_norm.batch_statistics and batch_statistics.supports(args[0]):
            return batch_statistics.mean_and_variance(*args[:4])
        if func is batch_norm.normalize and normalize.supports(*args[:2]):
            return normalize.normalize(*args[:6], *args[7:])  # the kernel does not take the number of values
        if func is F.scaled_dot_product_attention:  # fused kernels fail under vmap for some lengths (backward)
            with sdpa_kernel(SDPBackend.MATH):
                return func(*args, **(kwargs or {}))
        if func is F.linear and linear.supports(*args[:2]):
            return linear.linear(*args, **(kwargs or {}))
        if func is torch.conv2d and not kwargs and len(args) == 7 and convolve.supports(args[0], *args[3:]):
            return convolve.conv2d(*args[:5])
        return func(*args, **(kwargs or {}))


def with_stacked_layers(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Return a function that uses stacked layers on a GPU, where they are faster."""
    if device.type != "cuda":
        return function

    def call(*args: Any) -> Any:
        with StackedLayers():
            return function(*args)

    return call
