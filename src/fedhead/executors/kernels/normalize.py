"""Batch normalization of stacked clients and its gradients, with one kernel for all clients.

The compiler would store the gradients of plain operations in float32, and convert their layout twice before the next
convolution. These operators minimize memory traffic and keep channels last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedhead.executors.kernels.common import SUMS, available, clients_first, load, next_power_of_two
from fedhead.models import batch_norm

BLOCK = 2048  # values per program


def supports(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernels support an input and Triton is installed."""
    return x.dtype != torch.float64 and weight.dtype == torch.float32 and x.dim() >= 2 and available()


def normalize(x: Tensor, *others: Any) -> Tensor:
    """Compute `fedhead.models.batch_norm.normalize` for a client in a stack; see `batch_normalize`."""
    rows = x.movedim(1, -1).contiguous()
    flat = rows.reshape(x.shape[0], -1, x.shape[1])
    y: Tensor = batch_normalize(flat, *others)
    return y.reshape(rows.shape).movedim(-1, 1)


# -- operators ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::batch_normalize", mutates_args=())
def batch_normalize(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    samples: Tensor | None,
    eps: float,
    min_count: int,
) -> Tensor:
    """Normalize one client's batch [B, P, C]."""
    parameters = (weight[None], bias[None], mean[None], var[None])
    y: Tensor = stacked(x[None], None, *parameters, None if samples is None else samples[None], eps, min_count, False)
    return y[0]


@batch_normalize.register_fake
def _(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


@batch_normalize.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    *tensors, eps, min_count = args
    pairs = zip(tensors, in_dims, strict=False)
    x, *parameters = (None if t is None else clients_first(t, dim, info.batch_size) for t, dim in pairs)
    assert x is not None
    return stacked(x, None, *parameters, eps, min_count, False), 0


@torch.library.custom_op("fedhead::stacked_normalize", mutates_args=())
def stacked(
    x: Tensor,
    skip: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    samples: Tensor | None,
    eps: float,
    min_count: int,
    rectify: bool,
) -> Tensor:
    """Normalize every client's batch x [K, B, P, C]; weight, bias, mean and var are [K, C], samples [K, B].

    With `skip` and `rectify`, return max(0, y + skip) instead of y; `fusion` sets them in the traced step.
    """
    x = x.contiguous()
    parameters = [t.contiguous() for t in (weight, bias, mean, var)]
    y = torch.empty_like(x)
    grid, rows, channels, blocks = _blocks(x)
    added = x if skip is None else skip.contiguous()
    load("normalize_kernels").normalize[grid](
        x, added, *parameters, y, rows, eps, channels, skip is not None, rectify, *blocks
    )
    return y


@stacked.register_fake
def _(x: Tensor, *others: Any) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("fedhead::stacked_normalize_gradients", mutates_args=())
def gradients(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    samples: Tensor | None,
    eps: float,
    min_count: int,
    rectify: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `stacked`'s x, weight and bias; `grad` is the gradient of its output.

    The other arguments are those of `stacked`, except `skip`, whose gradient is the gradient of the sum.
    """
    x, grad = x.contiguous(), grad.contiguous()
    parameters = [t.contiguous() for t in (weight, bias, mean, var)]
    clients, batch, positions, channels = x.shape
    grid, rows, _, (height, width) = _blocks(x)
    sum_height = SUMS.block // width
    slices, turns = SUMS.slices(rows, sum_height, clients * grid[1])
    part = x.new_empty(clients, slices, 2, channels, dtype=torch.float32)
    dx, share = torch.empty_like(x), x.new_empty(clients, 2, channels, dtype=torch.float32)
    weight_gradient, bias_gradient = (torch.empty_like(parameters[0]) for _ in range(2))
    masked = samples is not None
    flags = x if samples is None else samples.contiguous().view(torch.uint8)
    kernels = load("normalize_kernels")
    sizes = (rows, slices, eps, turns, channels, rectify, sum_height, width, SUMS.stages)
    kernels.gradient_sums[slices, *grid[1:]](x, grad, *parameters, part, *sizes, num_warps=SUMS.warps)
    blocks = (1 << (slices - 1).bit_length(), 1 << (batch - 1).bit_length(), width)
    totals = (batch, positions, slices, min_count, channels, masked)
    kernels.gradient_totals[grid[1:]](part, flags, weight_gradient, bias_gradient, share, *totals, *blocks)
    kernels.input_gradient[grid](
        x, grad, *parameters, flags, share, dx, batch, positions, eps, channels, masked, rectify, height, width
    )
    return dx, weight_gradient, bias_gradient


@gradients.register_fake
def _(x: Tensor, grad: Tensor, weight: Tensor, bias: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, _, *parameters, samples, ctx.eps, ctx.min_count, _ = inputs
    ctx.save_for_backward(x, *parameters, *(() if samples is None else (samples,)))


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, mean, var, *samples = ctx.saved_tensors
    arguments = (weight, bias, mean, var, samples[0] if samples else None, ctx.eps, ctx.min_count)
    if torch.is_grad_enabled():
        dx, weight_gradient, bias_gradient = _differentiable(x, grad, *arguments)
    else:
        dx, weight_gradient, bias_gradient = gradients(x, grad.contiguous(), *arguments, False)
    return dx, None, weight_gradient, bias_gradient, *[None] * 6


def _differentiable(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    samples: Tensor | None,
    eps: float,
    min_count: int,
) -> tuple[Tensor | None, ...]:
    """Compute `gradients` with plain operations, which are differentiable."""
    positions = x.shape[2]

    def single(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, samples: Tensor | None) -> Tensor:
        count = x.shape[0] * positions if samples is None else samples.sum(0, keepdim=True).float() * positions
        y = batch_norm.normalize(x.movedim(-1, 1), weight, bias, mean, var, samples, count, eps, min_count)
        return y.movedim(1, -1)

    y = vmap(single, in_dims=(*[0] * 5, None if samples is None else 0))(x, weight, bias, mean, var, samples)
    wanted = [t for t in (x, weight, bias) if t.requires_grad]
    values = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
    return tuple(next(values) if t.requires_grad else None for t in (x, weight, bias))


stacked.register_autograd(_backward, setup_context=_save)


def _blocks(x: Tensor) -> tuple[tuple[int, int, int], int, int, tuple[int, int]]:
    """Return the grid of an elementwise kernel, the rows, the channels and the block size."""
    clients, batch, positions, channels = x.shape
    width = next_power_of_two(channels, 64)
    rows, height = batch * positions, BLOCK // width
    return (-(-rows // height), -(-channels // width), clients), rows, channels, (height, width)
