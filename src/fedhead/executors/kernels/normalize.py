"""Batch normalization of stacked clients, in plain operations that a compiler fuses with those around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute `nn.functional.batch_norm` in at least float32, and return the dtype of `x`.

    Running statistics are updated in place. Under `vmap` torch's own function would copy its input to another memory
    format, and it has no backward pass in bfloat16.
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    weight = x.new_ones(x.shape[1], dtype=kind) if weight is None else weight
    bias = x.new_zeros(x.shape[1], dtype=kind) if bias is None else bias
    if not training and running_mean is not None and running_var is not None:
        scale = torch.rsqrt(running_var + eps) * weight
        return (x.to(kind) * _per_channel(scale, x) + _per_channel(bias - running_mean * scale, x)).to(x.dtype)
    y, mean, var = BatchStatisticsNorm.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if training and running_mean is not None and running_var is not None:
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
            running_var.mul_(1 - momentum).add_(var, alpha=momentum * count / max(count - 1, 1))
    return y  # type: ignore[no-any-return]  # as above


class BatchStatisticsNorm(torch.autograd.Function):
    """Normalization by the batch's own statistics, which it also returns; saves only its input for backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return the normalized input, and the mean and variance of each channel."""
        wide = x.to(weight.dtype)
        var, mean = torch.var_mean(wide, _reduced_axes(x), correction=0)
        y = (wide - _per_channel(mean, x)) * _per_channel(torch.rsqrt(var + eps) * weight, x) + _per_channel(bias, x)
        return y.to(x.dtype), mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Save what the backward pass needs."""
        x, weight, _, ctx.eps = inputs
        _, mean, var = output
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, var)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of input, weight and bias."""
        x, weight, mean, var = ctx.saved_tensors
        slope = grads[0].to(weight.dtype)
        scale = torch.rsqrt(var + ctx.eps)
        normal = (x.to(weight.dtype) - _per_channel(mean, x)) * _per_channel(scale, x)
        bias_grad = slope.sum(_reduced_axes(x))
        weight_grad = (slope * normal).sum(_reduced_axes(x))
        count = x.numel() // x.shape[1]
        dx = slope - _per_channel(bias_grad / count, x) - normal * _per_channel(weight_grad / count, x)
        return (dx * _per_channel(scale * weight, x)).to(x.dtype), weight_grad, bias_grad, None


def _reduced_axes(x: Tensor) -> tuple[int, ...]:
    """Return all axes but that of the channels."""
    return (0, *range(2, x.dim()))


def _per_channel(t: Tensor, x: Tensor) -> Tensor:
    """Reshape one number per channel to broadcast over `x`."""
    return t.reshape(-1, *[1] * (x.dim() - 2))
