"""Convolutions of stacked clients, all clients in one kernel.

Under `vmap` a convolution with a filter of its own for every client becomes a grouped one, which cuDNN mostly runs
client by client. Here it is one implicit matrix product a client, all of them launched at once: pixels are gathered
where they are multiplied, so no patches are laid out in memory. One kernel serves the forward pass and the gradient of
the input, which is a convolution of the gradient with the filters turned round; a second one the gradient of the
filters. Images keep their channels last, and what lies between convolutions follows them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor


def takes(stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether the kernels here know these settings of `conv2d`, and their compiler is installed."""
    plain = isinstance(padding, tuple) and stride[0] == stride[1] and tuple(dilation) == (1, 1) and groups == 1
    return plain and available()


@cache
def available() -> bool:
    """Whether the compiler of the kernels is installed."""
    try:
        import triton  # noqa: F401  (only whether it can be imported)
    except ImportError:
        return False
    return True


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """`torch.conv2d` for a client in a stack."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    images = x.to(kind).permute(0, 2, 3, 1).contiguous()
    y: Tensor = convolve(images, weight, stride[0], *padding).permute(0, 3, 1, 2)
    return y if bias is None else y + bias.to(kind).reshape(-1, 1, 1)


# -- operators ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    """One client's convolution in the type of x, [B, H, W, C], with [O, C, k, l]; `top` and `left` are its padding."""
    return _ordinary(x, weight, stride, top, left)


def _ordinary(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    y = torch.conv2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), None, stride, (top, left))
    return y.permute(0, 2, 3, 1).contiguous()


@convolve.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    x, weight, stride, top, left = args
    across, own = in_dims[:2]
    if own is None:  # one filter for all clients, as a frozen global model's: an ordinary, larger batch
        x = x.movedim(across, 0)
        y = _ordinary(x.flatten(0, 1), weight, stride, top, left)
        return y.reshape(*x.shape[:2], *y.shape[1:]), 0
    weight = weight.movedim(own, 0)
    x = x.expand(info.batch_size, *x.shape) if across is None else x.movedim(across, 0)
    return stacked(x, weight, stride, top, left), 0


@torch.library.custom_op("fedhead::stacked_convolve", mutates_args=())
def stacked(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    """The convolution of every client: x [K, B, H, W, C], weight [K, O, C, k, l]."""
    return launch_forward(x, weight, stride, top, left)


@torch.library.custom_op("fedhead::stacked_convolve_input", mutates_args=())
def stacked_input(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    """The gradient of `stacked`'s input of the given size."""
    return launch_input(grad, weight, (height, width), stride, top, left)


@torch.library.custom_op("fedhead::stacked_convolve_weight", mutates_args=())
def stacked_weight(x: Tensor, grad: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    """The gradient of `stacked`'s filters of the given size, in float32."""
    return launch_weight(x, grad, (height, width), stride, top, left)


@stacked.register_fake
def _(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    return x.new_empty(*x.shape[:2], *_sides(x, weight, stride, top, left), weight.shape[1])


@stacked_input.register_fake
def _(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    return grad.new_empty(*grad.shape[:2], height, width, weight.shape[2])


@stacked_weight.register_fake
def _(x: Tensor, grad: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    return x.new_empty(x.shape[0], grad.shape[4], x.shape[4], height, width, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.form = inputs[2:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    x, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    grad = grad.contiguous()
    dx = stacked_input(grad, weight, *x.shape[2:4], *ctx.form) if wanted[0] else None
    dw = stacked_weight(x, grad, *weight.shape[3:], *ctx.form).to(weight.dtype) if wanted[1] else None
    return dx, dw, None, None, None


stacked.register_autograd(_backward, setup_context=_save)


def _sides(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> tuple[int, int]:
    height = (x.shape[2] + 2 * top - weight.shape[3]) // stride + 1
    return height, (x.shape[3] + 2 * left - weight.shape[4]) // stride + 1


# -- launching ------------------------------------------------------------------------------------------------------
class Tiles(NamedTuple):
    """What one program works on at a time, and how."""

    group: int  # neighbouring pixels that share a run
    pixels: int  # groups of them
    filters: int  # at most
    taps: int  # at most
    warps: int
    stages: int  # how far ahead it reads


def launch_forward(x: Tensor, weight: Tensor, stride: int, top: int, left: int, tiles: Tiles | None = None) -> Tensor:
    """Run the convolution."""
    clients, batch, height, width, channels = x.shape
    filters, _, tall, wide = weight.shape[1:]
    out = _sides(x, weight, stride, top, left)
    tiles = tiles or _tiles(x, channels, filters, wide, stride, out[1])
    group = tiles.group
    span = stride * (group - 1) + wide
    steps = (1, 0, 0, 1, -stride, 0)
    laid_out = _expanded(weight, x.dtype, filters, channels, 1, group, tall, span, steps, turned=False)
    y = x.new_empty(clients, batch, *out, filters)
    q = out[1] // group
    over = left > 0 or (q - 1) * stride * group + span > width
    sizes = (channels, height, width, group * filters, out[0], q, 1, tall, span, stride, stride * group, top, left)
    _convolve(x, laid_out, y, batch * out[0] * q, (*sizes, over), tiles)
    return y


def launch_input(
    grad: Tensor, weight: Tensor, size: tuple[int, int], stride: int, top: int, left: int, tiles: Tiles | None = None
) -> Tensor:
    """Run the gradient of the input: a convolution that makes `stride` rows and `group` columns of it at a time."""
    clients, batch, height, width, filters = grad.shape
    channels, tall, wide = weight.shape[2:]
    tiles = tiles or _tiles(grad, filters, channels, wide, 1, size[1])
    group = tiles.group if stride == 1 else stride
    above, before = (tall - 1 - top) // stride, (wide - 1 - left) // stride
    runs, span = (stride - 1 + top) // stride + above + 1, (group - 1 + left) // stride + before + 1
    steps = (-stride, 1, top + stride * above, -stride, 1, left + stride * before)
    laid_out = _expanded(weight, grad.dtype, channels, filters, stride, group, runs, span, steps, turned=True)
    p, q = -(-size[0] // stride), -(-size[1] // group)
    dx = grad.new_empty(clients, batch, p * stride, q * group, channels)
    right = group // stride
    over = before > 0 or (q - 1) * right - before + span > width
    sizes = (filters, height, width, group * channels, p, q, stride, runs, span, 1, right, above, before)
    _convolve(grad, laid_out, dx, batch * p * q, (*sizes, over), tiles)
    return dx[:, :, : size[0], : size[1]].contiguous()


def launch_weight(
    x: Tensor, grad: Tensor, size: tuple[int, int], stride: int, top: int, left: int, tiles: Tiles | None = None
) -> Tensor:
    """Run the gradient of the filters: parts over slices of the pixels, then their sum in a fixed order."""
    clients, batch, height, width, channels = x.shape
    tall, wide = size
    filters = grad.shape[4]
    tiles = tiles or _gradient_tiles(x, channels, filters, wide, stride, grad.shape[3])
    group = tiles.group
    span = stride * (group - 1) + wide
    p, q, many = grad.shape[2], grad.shape[3] // group, group * filters
    block_m, block_r = _power(many, tiles.filters), _power(span * channels, tiles.taps)
    columns = tall * -(-span * channels // block_r) * -(-many // block_m)
    pixels = batch * p * q
    slices = max(1, min(-(-PROGRAMS // (columns * clients)), pixels // (4 * tiles.pixels)))
    turns = -(-pixels // (slices * tiles.pixels))
    part = x.new_empty(clients, slices, tall, span, channels, many, dtype=torch.float32)
    over = left > 0 or (q - 1) * stride * group + span > width
    sizes = (channels, height, width, many, p, q, tall, span, stride, stride * group, top, left, over)
    blocks = (tiles.pixels, block_m, block_r, _exactness())
    _kernels().filter_gradient[columns, slices, clients](
        x.contiguous(), grad.contiguous(), part, pixels, slices, turns, *sizes, *blocks, **_how(tiles)
    )
    total = x.new_empty(clients, filters, channels, tall, wide, dtype=torch.float32)
    _kernels().collect[-(-total[0].numel() // BLOCK), clients](
        part, total, slices, tall, wide, filters, channels, group, span, stride, BLOCK
    )
    return total


def _convolve(x: Tensor, laid_out: Tensor, y: Tensor, pixels: int, sizes: tuple[int, ...], tiles: Tiles) -> None:
    channels, filters, rows, span = sizes[0], sizes[3], sizes[6], sizes[8]
    block_m, block_r = _power(rows * filters, tiles.filters), _power(span * channels, tiles.taps)
    grid = (-(-pixels // tiles.pixels), -(-rows * filters // block_m), len(x))
    blocks = (tiles.pixels, block_m, block_r, _exactness())
    _kernels().convolution[grid](x.contiguous(), laid_out, y, pixels, *sizes, *blocks, **_how(tiles))


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
    """The filters laid out for runs; `turned` swaps the parts of filters and channels."""
    weight = weight.contiguous()
    tall, wide = weight.shape[3:]
    strides = weight.stride()[:3]
    strides = (strides[0], strides[2], strides[1]) if turned else strides
    laid_out = weight.new_empty(len(weight), rows * group * filters, runs, span, channels, dtype=kind)
    grid = (-(-laid_out[0].numel() // BLOCK), len(weight))
    sizes = (tall, wide, filters, channels, rows, group, runs, span, *steps)
    _kernels().expand[grid](weight, laid_out, *strides, *sizes, BLOCK)
    return laid_out


BLOCK = 512  # elements a program of the kernels that only move them
PROGRAMS = 1024  # enough to fill a large GPU several times


def _tiles(x: Tensor, channels: int, filters: int, wide: int, stride: int, columns: int) -> Tiles:
    return Tiles(1, 128, 64, 64, 4, 3)


def _gradient_tiles(x: Tensor, channels: int, filters: int, wide: int, stride: int, columns: int) -> Tiles:
    return Tiles(1, 64, 64, 64, 4, 3)


def _power(count: int, most: int) -> int:
    """The next power of two, from 16 up to `most`."""
    return max(16, min(most, 1 << (count - 1).bit_length()))


def _how(tiles: Tiles) -> dict[str, int]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages}


def _exactness() -> str:
    """How float32 factors are multiplied: rounded to TF32, or split in three for float32's own accuracy."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


@cache
def _kernels() -> Any:
    from fedhead.engine import convolve_kernels

    return convolve_kernels
