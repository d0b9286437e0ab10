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
    """`nn.functional.batch_norm`, in float32 at least, returned in the type of `x`; running statistics move in place.

    Under `vmap` torch's own would lay its input out anew, and can't go backward through bfloat16.
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    weight = x.new_ones(x.shape[1], dtype=kind) if weight is None else weight
    bias = x.new_zeros(x.shape[1], dtype=kind) if bias is None else bias
    if not training and running_mean is not None and running_var is not None:
        scale = torch.rsqrt(running_var + eps) * weight
        return (x.to(kind) * _wide(scale, x) + _wide(bias - running_mean * scale, x)).to(x.dtype)
    y, mean, var = ByBatch.apply(x, weight, bias, eps)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    if training and running_mean is not None and running_var is not None:
        count = x.numel() // x.shape[1]
        with torch.no_grad():
            running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
            running_var.mul_(1 - momentum).add_(var, alpha=momentum * count / max(count - 1, 1))
    return y  # type: ignore[no-any-return]  # as above


class ByBatch(torch.autograd.Function):
    """Normalized by the batch's own statistics, which it returns too; keeps no more than its input for the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        """The normalized input, and the mean and variance of each channel."""
        wide = x.to(weight.dtype)
        var, mean = torch.var_mean(wide, _others(x), correction=0)
        y = (wide - _wide(mean, x)) * _wide(torch.rsqrt(var + eps) * weight, x) + _wide(bias, x)
        return y.to(x.dtype), mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keep what the way back needs."""
        x, weight, _, ctx.eps = inputs
        _, mean, var = output
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, mean, var)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradients of input, weight and bias."""
        x, weight, mean, var = ctx.saved_tensors
        slope = grads[0].to(weight.dtype)
        scale = torch.rsqrt(var + ctx.eps)
        normal = (x.to(weight.dtype) - _wide(mean, x)) * _wide(scale, x)
        bias_grad = slope.sum(_others(x))
        weight_grad = (slope * normal).sum(_others(x))
        count = x.numel() // x.shape[1]
        dx = slope - _wide(bias_grad / count, x) - normal * _wide(weight_grad / count, x)
        return (dx * _wide(scale * weight, x)).to(x.dtype), weight_grad, bias_grad, None


def _others(x: Tensor) -> tuple[int, ...]:
    """All axes but the channels'."""
    return (0, *range(2, x.dim()))


def _wide(t: Tensor, x: Tensor) -> Tensor:
    """One number a channel, to go with `x`."""
    return t.reshape(-1, *[1] * (x.dim() - 2))
