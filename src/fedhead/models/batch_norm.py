"""Batch normalization that masks padding rows.

All batches have the same size; the last one of an epoch is padded with rows of weight 0. While a model trains on such a
batch, `F.batch_norm`, which every `nn.BatchNorm` layer calls, is redirected (`MaskedBatchNorm`), so that outputs,
gradients and running statistics are those of plain PyTorch on the samples without padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary

from fedhead.core.system.errors import BadInput
from fedhead.models.layers import is_user_defined


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    samples: Tensor | None = None,
) -> Tensor:
    """Compute `nn.functional.batch_norm` in at least float32, and return it in the dtype of `x`.

    Running statistics are updated in place. It consists of plain operations, which a compiler can fuse. Under `vmap`,
    torch's own function would copy its input to another memory format, and it has no backward pass in bfloat16.

    Args:
        x: Inputs, [B, C, ...].
        running_mean: Running mean, [C].
        running_var: Running variance, [C].
        weight: Scale, [C].
        bias: Shift, [C].
        training: Whether to normalize by the batch and to update the running statistics.
        momentum: Share of the batch in the new running statistics.
        eps: Added to the variance.
        samples: Mask of the rows of `x` that are not padding, [B]; None: no padding. A batch with fewer than two values
            per channel has no variance: it is normalized by the running statistics, which are not updated.

    Returns:
        Normalized inputs, padding rows included.
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    weight = x.new_ones(x.shape[1], dtype=kind) if weight is None else weight
    bias = x.new_zeros(x.shape[1], dtype=kind) if bias is None else bias
    if not training and running_mean is not None and running_var is not None:
        scale = torch.rsqrt(running_var + eps) * weight
        return (x.to(kind) * _per_channel(scale, x) + _per_channel(bias - running_mean * scale, x)).to(x.dtype)
    positions = x.numel() // (x.shape[0] * x.shape[1])
    count: Any = x.shape[0] * positions if samples is None else samples.sum(0, keepdim=True).to(kind) * positions
    with torch.no_grad():  # the backward pass of `normalize` includes that of the statistics
        mean, var = batch_statistics(x, samples, running_mean, running_var, count)
    min_count = 1 if running_mean is None else 2
    y = normalize(x, weight, bias, mean, var, samples, count, eps, min_count)
    if training and running_mean is not None and running_var is not None:
        with torch.no_grad():
            unbiased = var * (count / _at_least_one(count - 1))
            for running, value in ((running_mean, mean), (running_var, unbiased)):
                moved = running.mul(1 - momentum).add(value, alpha=momentum)
                running.copy_(moved if samples is None else torch.where(count > 1, moved, running))
    return y


def _at_least_one(count: Any) -> Any:
    return count.clamp_min(1) if isinstance(count, Tensor) else max(count, 1)


def normalize(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    samples: Tensor | None,
    count: int | Tensor,
    eps: float,
    min_count: int,
) -> Tensor:
    """Normalize a batch by its own statistics; executors may replace this with a kernel.

    Args:
        x: Inputs, [B, C, ...].
        weight: Scale, [C].
        bias: Shift, [C].
        mean: Mean from `batch_statistics`, [C].
        var: Variance from `batch_statistics`, [C].
        samples: Mask of samples, as for `batch_statistics`.
        count: Number of values per channel, as for `batch_statistics`.
        eps: Added to the variance.
        min_count: Minimum number of values per channel; smaller batches use the running statistics.
    """
    arguments = (x, weight, bias, mean, var, samples, count, eps, min_count)
    if has_torch_function_unary(x):
        y: Tensor = handle_torch_function(normalize, (x,), *arguments)
        return y
    return BatchStatisticsNorm.apply(*arguments)  # type: ignore[no-untyped-call,no-any-return]  # torch leaves it untyped


class BatchStatisticsNorm(torch.autograd.Function):
    """Normalization by the batch's own statistics, whose gradient includes that of the statistics.

    Only the input and the statistics are saved for the backward pass. Second derivatives are exact: a differentiated
    backward pass recomputes the statistics from the input.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        samples: Tensor | None,
        count: int | Tensor,
        eps: float,
        min_count: int,
    ) -> Tensor:
        """Return the normalized input; the arguments are those of `normalize`."""
        wide = x.to(weight.dtype)
        y = (wide - _per_channel(mean, x)) * _per_channel(torch.rsqrt(var + eps) * weight, x) + _per_channel(bias, x)
        return y.to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save tensors for the backward pass."""
        x, weight, _, mean, var, samples, count, ctx.eps, ctx.min_count = inputs
        ctx.count = None if isinstance(count, Tensor) else count
        ctx.save_for_backward(x, weight, mean, var, *(() if samples is None else (samples, count)))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of input, weight and bias; differentiable with `create_graph`."""
        x, weight, mean, var, *masked = ctx.saved_tensors
        if torch.is_grad_enabled():  # recompute: the saved statistics are constants to autograd
            samples, count = masked or (None, ctx.count)
            running_mean, running_var = (mean, var) if ctx.min_count > 1 else (None, None)
            mean, var = _statistics(x, samples, running_mean, running_var, count)
        grad = grads[0].to(weight.dtype)
        scale = torch.rsqrt(var + ctx.eps)
        normal = (x.to(weight.dtype) - _per_channel(mean, x)) * _per_channel(scale, x)
        bias_grad = grad.sum(_reduced_axes(x))
        weight_grad = (grad * normal).sum(_reduced_axes(x))
        count = _at_least_one(masked[1]) if masked else ctx.count
        dx = grad - _per_channel(bias_grad / count, x) - normal * _per_channel(weight_grad / count, x)
        if masked:  # mean and variance depend only on samples
            dx = torch.where(_per_row(masked[0] & (masked[1] >= ctx.min_count), x), dx, grad)
        return (dx * _per_channel(scale * weight, x)).to(x.dtype), weight_grad, bias_grad, *[None] * 6


def batch_statistics(
    x: Tensor, samples: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Compute mean and biased variance of each channel of a batch; executors may replace this with a kernel.

    Args:
        x: Inputs, [B, C, ...].
        samples: Mask of the rows that are not padding, [B]; None: no padding.
        running_mean: Fallback mean for a batch without variance, [C]; None: no fallback.
        running_var: Fallback variance, [C].
        count: Number of values per channel, without padding.

    Returns:
        Mean and variance in at least float32, both [C].
    """
    if has_torch_function_unary(x):
        statistics: tuple[Tensor, Tensor] = handle_torch_function(
            batch_statistics, (x,), x, samples, running_mean, running_var, count
        )
        return statistics
    return _statistics(x, samples, running_mean, running_var, count)


def _statistics(
    x: Tensor, samples: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None, count: int | Tensor
) -> tuple[Tensor, Tensor]:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if samples is None or not isinstance(count, Tensor):
        var, mean = torch.var_mean(wide, _reduced_axes(x), correction=0)
        return mean, var
    mean, var = _masked_statistics(wide, samples, count)
    if running_mean is None or running_var is None:
        return mean, var
    return torch.where(count > 1, mean, running_mean), torch.where(count > 1, var, running_var)


def _masked_statistics(x: Tensor, samples: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel over the samples, in one pass over the data.

    All values are shifted by one of them, a, and padding is set to 0. The mean m' and variance v' of these N numbers
    give those of the n sample values: m = a + m' N/n and v = v' N/n - (m - a)²(N - n)/N. Since a is near the mean,
    there is little cancellation.
    """
    middle: tuple[Any, ...] = (0, slice(None), *(size // 2 for size in x.shape[2:]))
    a = x[middle]
    shifted = torch.where(_per_row(samples, x), x - _per_channel(a, x), 0.0)
    var, mean = torch.var_mean(shifted, _reduced_axes(x), correction=0)
    total, n = x.numel() // x.shape[1], _at_least_one(count)
    mean = mean * (total / n)
    var = var * (total / n) - mean.square() * ((total - n) / total)
    return a + mean, var.clamp_min(0)


def _reduced_axes(x: Tensor) -> tuple[int, ...]:
    """Return all axes except the channel axis."""
    return (0, *range(2, x.dim()))


def _per_channel(t: Tensor, x: Tensor) -> Tensor:
    """Reshape one number per channel to broadcast over `x`."""
    return t.reshape(-1, *[1] * (x.dim() - 2))


def _per_row(t: Tensor, x: Tensor) -> Tensor:
    """Reshape one number per row to broadcast over `x`."""
    return t.reshape(-1, *[1] * (x.dim() - 1))


class MaskedBatchNorm(TorchFunctionMode):
    """Context manager that makes `F.batch_norm`, and so every BatchNorm layer, ignore padding in training.

    Args:
        samples: Mask of the rows of the model's inputs that are not padding, [B].
        rows: Number of rows of the model's inputs.
    """

    def __init__(self, samples: Tensor, rows: int):
        super().__init__()
        self.samples, self.rows = samples, rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Redirect batch normalization; call other functions unchanged."""
        return self._redirected(*args, **(kwargs or {})) if func is F.batch_norm else func(*args, **(kwargs or {}))

    def _redirected(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Compute masked batch normalization with the arguments of `F.batch_norm`."""
        arguments = (running_mean, running_var, weight, bias, training, momentum, eps)
        if not training:
            return F.batch_norm(input, *arguments)
        return batch_norm(input, *arguments, samples=self._samples_of(input))

    def _samples_of(self, x: Tensor) -> Tensor:
        """Return the mask of a layer's input rows; a model may create several rows per sample."""
        size, rows = len(self.samples), x.shape[0]
        if self.rows != size:
            raise BadInput(
                f"client.apply got {self.rows} rows in a batch of {size}, and BatchNorm must know which are padding: "
                f"give apply their weights, such as weight=torch.cat([batch.weight, batch.weight])"
            )
        if rows % size:
            raise BadInput(
                f"a BatchNorm layer gets {rows} rows for a batch of {size} samples, and must know which are padding: "
                f"keep one row per sample, or as many for each"
            )
        return self.samples.unsqueeze(1).expand(size, rows // size).reshape(rows)


def may_normalize_batches(model: nn.Module) -> bool:
    """Return whether a model may call `F.batch_norm`: it has a BatchNorm layer, or user-defined modules."""
    return any(
        isinstance(module, nn.modules.batchnorm._BatchNorm) or is_user_defined(module) for module in model.modules()
    )
