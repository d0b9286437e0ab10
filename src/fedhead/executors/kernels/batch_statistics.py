"""Mean and variance of a batch for stacked clients, with one kernel for all clients.

The compiler would fuse the computation of mean and variance from the sums into every kernel that uses them. It would
also store normalized copies of the activations instead of these few numbers. A custom operator computes them once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedhead.executors.kernels.common import SUMS, available, clients_first, load, next_power_of_two


def supports(x: Tensor) -> bool:
    """Return whether the kernels support an input and Triton is installed."""
    return x.dtype != torch.float64 and x.dim() >= 2 and available()


def mean_and_variance(
    x: Tensor, samples: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute `fedhead.models.batch_norm.batch_statistics` for a client in a stack."""
    rows = x.movedim(1, -1).contiguous().reshape(x.shape[0], -1, x.shape[1])
    mean, var = batch_statistics(rows, samples, running_mean, running_var)
    return mean, var


# -- operators ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::batch_statistics", mutates_args=())
def batch_statistics(
    x: Tensor, samples: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute mean and variance [C] of one client's batch [B, P, C] without padding, in float32."""

    def with_axis(t: Tensor | None) -> Tensor | None:
        return None if t is None else t[None]

    mean, var = stacked(x[None], with_axis(samples), with_axis(running_mean), with_axis(running_var))
    return mean[0], var[0]


@batch_statistics.register_fake
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[2], dtype=torch.float32), x.new_empty(x.shape[2], dtype=torch.float32)


@batch_statistics.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], *args: Tensor | None
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    tensors = zip(args, in_dims, strict=True)
    x, *others = (None if t is None else clients_first(t, dim, info.batch_size) for t, dim in tensors)
    assert x is not None
    return stacked(x, *others), (0, 0)


@torch.library.custom_op("fedhead::stacked_batch_statistics", mutates_args=())
def stacked(
    x: Tensor, samples: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute mean and variance [K, C] of every client's batch [K, B, P, C]; samples are [K, B]."""
    clients, batch, positions, channels = x.shape
    x, samples = x.contiguous(), x if samples is None else samples.contiguous().view(torch.uint8)
    masked, running = samples is not x, running_mean is not None and running_var is not None
    width = next_power_of_two(channels, 64)
    columns, rows, height = -(-channels // width), batch * positions, SUMS.block // width
    slices, turns = SUMS.slices(rows, height, clients * columns)
    part = x.new_empty(clients, slices, 2, channels, dtype=torch.float32)
    mean, var = (x.new_empty(clients, channels, dtype=torch.float32) for _ in range(2))
    before = [t.contiguous() for t in (running_mean, running_var) if t is not None] if running else [mean, var]
    kernels = load("batch_statistics_kernels")
    sizes = (batch, positions, slices, turns, channels, masked, height, width, SUMS.stages)
    kernels.partial_sums[slices, columns, clients](x, samples, part, *sizes, num_warps=SUMS.warps)
    blocks = (1 << (slices - 1).bit_length(), 1 << (batch - 1).bit_length(), width)
    kernels.combine[columns, clients](
        x, samples, part, *before, mean, var, batch, positions, slices, channels, masked, running, *blocks
    )
    return mean, var


@stacked.register_fake
def _(x: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    mean, var = (x.new_empty(x.shape[0], x.shape[3], dtype=torch.float32) for _ in range(2))
    return mean, var
