"""Launch of the kernels of stacked convolutions: memory layout and tiling."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedhead.executors.kernels.common import dot_precision, load, next_power_of_two


class Tiles(NamedTuple):
    """Tile sizes and launch configuration of a convolution.

    Args:
        group: Neighboring pixels of a row that share their runs (see `convolve_kernels`).
        pixels: Groups per tile.
        filters: Maximum number of filters per tile, counted once per pixel of a group.
        taps: Maximum number of taps that are multiplied at a time.
        warps: Warps per program.
        stages: Pipeline stages.
        rows: Rows of pixels that share their runs.
    """

    group: int
    pixels: int
    filters: int
    taps: int
    warps: int
    stages: int
    rows: int = 1


def launch_forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    """Launch the convolution."""
    clients, batch, height, width, channels = x.shape
    filters, _, tall, wide = weight.shape[1:]
    out = sides(x, weight, stride, top, left)
    tiles = _tiles(x, channels, filters, (tall, wide), stride, out)
    group, rows = tiles.group, tiles.rows
    runs, span = stride * (rows - 1) + tall, stride * (group - 1) + wide
    steps = (1, -stride, 0, 1, -stride, 0)
    laid_out = _expanded(weight, x.dtype, filters, channels, rows, group, runs, span, steps, turned=False)
    y = x.new_empty(clients, batch, *out, filters)
    p, q = out[0] // rows, out[1] // group
    over = left > 0 or (q - 1) * stride * group + span > width
    form = (channels, height, width, group * filters, p, q, rows, runs, span)
    sizes = (*form, stride * rows, stride * group, top, left, over)
    _convolve(x, laid_out, bias, y, batch * p * q, sizes, tiles)
    return y


def launch_input(grad: Tensor, weight: Tensor, size: tuple[int, int], stride: int, top: int, left: int) -> Tensor:
    """Launch the gradient of the input: a convolution in which groups of rows and columns share their runs.

    With a stride, a group has `stride` rows and columns; without one, those of the tiles.
    """
    clients, batch, height, width, filters = grad.shape
    channels, tall, wide = weight.shape[2:]
    tiles = _tiles(grad, filters, channels, (tall, wide), 1, size)
    group, rows = (tiles.group, tiles.rows) if stride == 1 else (stride, stride)
    above, before = (tall - 1 - top) // stride, (wide - 1 - left) // stride
    runs, span = (rows - 1 + top) // stride + above + 1, (group - 1 + left) // stride + before + 1
    steps = (-stride, 1, top + stride * above, -stride, 1, left + stride * before)
    laid_out = _expanded(weight, grad.dtype, channels, filters, rows, group, runs, span, steps, turned=True)
    p, q = -(-size[0] // rows), -(-size[1] // group)
    dx = grad.new_empty(clients, batch, p * rows, q * group, channels)
    right = group // stride
    over = before > 0 or (q - 1) * right - before + span > width
    form = (filters, height, width, group * channels, p, q, rows, runs, span)
    _convolve(grad, laid_out, None, dx, batch * p * q, (*form, rows // stride, right, above, before, over), tiles)
    return dx[:, :, : size[0], : size[1]].contiguous()


def launch_weight(
    x: Tensor, grad: Tensor, size: tuple[int, int], biased: bool, stride: int, top: int, left: int
) -> tuple[Tensor, Tensor]:
    """Launch the gradients of filters and bias: partial sums over slices of pixels, then their sum in fixed order."""
    clients, batch, height, width, channels = x.shape
    tall, wide = size
    filters = grad.shape[4]
    tiles = _gradient_tiles(x, channels, filters, size, stride, grad.shape[3])
    group = tiles.group
    span = stride * (group - 1) + wide
    p, q, many = grad.shape[2], grad.shape[3] // group, group * filters
    block_m = next_power_of_two(many, tiles.filters)
    block_r = next_power_of_two(tall * span * channels, tiles.taps)
    columns = -(-tall * span * channels // block_r) * -(-many // block_m)
    pixels = batch * p * q
    slices = max(1, min(PROGRAMS // (columns * clients), pixels // (4 * tiles.pixels)))
    turns = -(-pixels // (slices * tiles.pixels))
    part = x.new_empty(clients, slices, tall, span, channels, many, dtype=torch.float32)
    bias_part = x.new_empty(clients, slices, many if biased else 0, dtype=torch.float32)
    over = left > 0 or (q - 1) * stride * group + span > width
    sizes = (channels, height, width, many, p, q, tall, span, stride, stride * group, top, left, over, biased)
    blocks = (tiles.pixels, block_m, block_r, dot_precision())
    load("convolve_kernels").filter_gradient[columns, slices, clients](
        x.contiguous(), grad.contiguous(), part, bias_part, pixels, slices, turns, *sizes, *blocks, **_how(tiles)
    )
    outputs = gradients(x, grad, size, biased)
    form = (slices, tall, wide, filters, channels, group, span, stride, biased)
    grid = (-(-outputs[0][0].numel() // COLLECTED), clients)
    load("convolve_kernels").collect[grid](
        part, bias_part, *outputs, *form, COLLECTED, min(32, 1 << (slices - 1).bit_length()), num_warps=1
    )
    return outputs


def _convolve(
    x: Tensor, laid_out: Tensor, bias: Tensor | None, y: Tensor, pixels: int, sizes: tuple[int, ...], tiles: Tiles
) -> None:
    channels, filters, rows, runs, span = sizes[0], sizes[3], *sizes[6:9]
    block_m = next_power_of_two(rows * filters, tiles.filters)
    block_r = next_power_of_two(runs * span * channels, tiles.taps)
    grid = (-(-pixels // tiles.pixels), -(-rows * filters // block_m), len(x))
    blocks = (tiles.pixels, block_m, block_r, dot_precision())
    biased = 0 if bias is None else bias.shape[1]
    bias = y if bias is None else bias.contiguous()  # a placeholder that is never read
    load("convolve_kernels").convolution[grid](
        x.contiguous(), laid_out, bias, y, pixels, *sizes, biased, *blocks, **_how(tiles)
    )


def _expanded(
    weight: Tensor,
    kind: torch.dtype,
    filters: int,
    channels: int,
    rows: int,
    group: int,
    runs: int,
    span: int,
    steps: tuple[int, ...],
    turned: bool,
) -> Tensor:
    """Return the filters in the layout that the kernel `convolution` reads; `turned` swaps filters and channels."""
    weight = weight.contiguous()
    tall, wide = weight.shape[3:]
    strides = weight.stride()[:3]
    strides = (strides[0], strides[2], strides[1]) if turned else strides
    laid_out = weight.new_empty(len(weight), rows * group * filters, runs, span, channels, dtype=kind)
    grid = (-(-laid_out[0].numel() // BLOCK), len(weight))
    sizes = (tall, wide, filters, channels, rows, group, runs, span, *steps)
    load("convolve_kernels").expand[grid](weight, laid_out, *strides, *sizes, BLOCK)
    return laid_out


BLOCK, COLLECTED = 512, 64  # elements per program of `expand` and `collect`
PROGRAMS = 528  # of `filter_gradient`, if it has enough blocks: four per multiprocessor of an H200


def _tiles(x: Tensor, channels: int, filters: int, size: tuple[int, int], stride: int, out: tuple[int, int]) -> Tiles:
    """Return the tiles of a convolution that were fastest on an H200.

    Args:
        x: Input of the convolution.
        channels: Number of channels.
        filters: Number of filters.
        size: Height and width of a filter.
        stride: Stride of the filters.
        out: Height and width of the result.
    """
    exact = x.dtype == torch.float32
    group = _group(channels, filters, stride, out[1], exact)
    rows = 2 if not exact and channels <= 16 and group <= 2 and stride == 1 and out[0] % 2 == 0 else 1
    taps = (stride * (rows - 1) + size[0]) * (stride * (group - 1) + size[1]) * channels
    ahead = 1 if channels % 16 != 0 else 3 if exact or taps > 288 else 2  # unaligned data is not prefetched
    if exact and group * filters <= 32:
        return Tiles(group, 64, 64, _taps(taps, channels), 4, ahead)
    return Tiles(group, 128, 64, _taps(taps, channels), 8 if exact or rows == 2 else 4, ahead, rows)


def _gradient_tiles(x: Tensor, channels: int, filters: int, size: tuple[int, int], stride: int, columns: int) -> Tiles:
    """Return the fastest tiles of the filters' gradient; `columns` is the width of the outputs' gradient."""
    exact = x.dtype == torch.float32
    group = 4 if channels < 4 and columns % 4 == 0 and not exact else _group(channels, filters, stride, columns, exact)
    taps = size[0] * (stride * (group - 1) + size[1]) * channels
    if exact:
        return Tiles(group, 32, 64, _taps(taps, channels), 2, 3 if channels % 16 == 0 else 1)
    if channels % 16 != 0:
        return Tiles(group, 64, 64, _taps(taps, channels), 4, 1)
    return Tiles(group, 64, 64, 64, 4, 3)


def _group(channels: int, filters: int, stride: int, columns: int, exact: bool) -> int:
    """Return the number of pixels that share a run: more with fewer channels, to fill the matrix units."""
    if channels < 16:
        wanted = 4 if filters <= 8 else 2
    else:
        wanted = 2 if stride == 1 and channels <= (16 if exact else 32) else 1
    return next(group for group in (wanted, 2, 1) if columns % group == 0)


def _taps(count: int, channels: int) -> int:
    """Return the number of taps per block: a power of two with little padding of the last block.

    Unaligned channels are not prefetched and were faster in larger blocks.
    """
    if channels % 16 != 0:
        return 128 if count <= 128 else 64
    return min((64, 32), key=lambda block: -(-count // block) * block)


def _how(tiles: Tiles) -> dict[str, int]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages}


def sides(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> tuple[int, int]:
    """Return height and width of the output."""
    height = (x.shape[2] + 2 * top - weight.shape[3]) // stride + 1
    return height, (x.shape[3] + 2 * left - weight.shape[4]) // stride + 1


def gradients(x: Tensor, grad: Tensor, size: tuple[int, int], biased: bool) -> tuple[Tensor, Tensor]:
    """Return uninitialized gradients of filters and bias."""
    clients, filters = len(x), grad.shape[4]
    weight = x.new_empty(clients, filters, x.shape[4], *size, dtype=torch.float32)
    return weight, x.new_empty(clients, filters if biased else 0, dtype=torch.float32)
