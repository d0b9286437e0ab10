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


def takes(x: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether the kernels here know such an input and these settings of `conv2d`, and their compiler is installed."""
    plain = isinstance(padding, tuple) and stride[0] == stride[1] and tuple(dilation) == (1, 1) and groups == 1
    return plain and x.dim() == 4 and x.dtype != torch.float64 and available()


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
    y: Tensor = convolve(images, weight, bias, stride[0], *padding).permute(0, 3, 1, 2)
    return y


# -- operators ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    """One client's convolution in the type of x, [B, H, W, C], with [O, C, k, l]; `top` and `left` are its padding."""
    return _ordinary(x, weight, bias, stride, top, left)


def _ordinary(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    y = torch.conv2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), bias, stride, (top, left))
    return y.permute(0, 2, 3, 1).contiguous()


@convolve.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    x, weight, bias, stride, top, left = args
    across, own, own_bias = in_dims[:3]
    if own is None and own_bias is None:  # filters of all clients, as a frozen global model's: one larger batch
        x = x.movedim(across, 0)
        y = _ordinary(x.flatten(0, 1), weight, bias, stride, top, left)
        return y.reshape(*x.shape[:2], *y.shape[1:]), 0

    def every(t: Tensor, dim: int | None) -> Tensor:
        return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

    bias = None if bias is None else every(bias, own_bias)
    return stacked(every(x, across), every(weight, own), bias, stride, top, left), 0


@torch.library.custom_op("fedhead::stacked_convolve", mutates_args=())
def stacked(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    """The convolution of every client: x [K, B, H, W, C], weight [K, O, C, k, l], bias [K, O]."""
    return launch_forward(x, weight, bias, stride, top, left)


@torch.library.custom_op("fedhead::stacked_convolve_input", mutates_args=())
def stacked_input(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    """The gradient of `stacked`'s input of the given size."""
    return launch_input(grad, weight, (height, width), stride, top, left)


@torch.library.custom_op("fedhead::stacked_convolve_weight", mutates_args=())
def stacked_weight(
    x: Tensor, grad: Tensor, height: int, width: int, biased: bool, stride: int, top: int, left: int
) -> tuple[Tensor, Tensor]:
    """The gradients of `stacked`'s filters of the given size and of its bias (empty unless wanted), in float32."""
    return launch_weight(x, grad, (height, width), biased, stride, top, left)


@stacked.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    return x.new_empty(*x.shape[:2], *_sides(x, weight, stride, top, left), weight.shape[1])


@stacked_input.register_fake
def _(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    return grad.new_empty(*grad.shape[:2], height, width, weight.shape[2])


@stacked_weight.register_fake
def _(
    x: Tensor, grad: Tensor, height: int, width: int, biased: bool, stride: int, top: int, left: int
) -> tuple[Tensor, Tensor]:
    return _gradients(x, grad, (height, width), biased)


def _gradients(x: Tensor, grad: Tensor, size: tuple[int, int], biased: bool) -> tuple[Tensor, Tensor]:
    clients, filters = len(x), grad.shape[4]
    weight = x.new_empty(clients, filters, x.shape[4], *size, dtype=torch.float32)
    return weight, x.new_empty(clients, filters if biased else 0, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.form = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
    x, weight = ctx.saved_tensors
    grad = grad.contiguous()
    dx = dw = db = None
    if ctx.needs_input_grad[0]:
        dx = stacked_input(grad, weight, *x.shape[2:4], *ctx.form)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dw, db = stacked_weight(x, grad, *weight.shape[3:], ctx.biased is not None, *ctx.form)
        dw, db = dw.to(weight.dtype), None if ctx.biased is None else db.to(ctx.biased)
    return dx, dw, db, None, None, None


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


def launch_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int, tiles: Tiles | None = None
) -> Tensor:
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
    _convolve(x, laid_out, bias, y, batch * out[0] * q, (*sizes, over), tiles)
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
    _convolve(grad, laid_out, None, dx, batch * p * q, (*sizes, over), tiles)
    return dx[:, :, : size[0], : size[1]].contiguous()


def launch_weight(
    x: Tensor,
    grad: Tensor,
    size: tuple[int, int],
    biased: bool,
    stride: int,
    top: int,
    left: int,
    tiles: Tiles | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the gradients of filters and bias: parts over slices of the pixels, then their sum in a fixed order."""
    clients, batch, height, width, channels = x.shape
    tall, wide = size
    filters = grad.shape[4]
    tiles = tiles or _gradient_tiles(x, channels, filters, wide, stride, grad.shape[3])
    group = tiles.group
    span = stride * (group - 1) + wide
    p, q, many = grad.shape[2], grad.shape[3] // group, group * filters
    block_m, block_r = power(many, tiles.filters), power(span * channels, tiles.taps)
    columns = tall * -(-span * channels // block_r) * -(-many // block_m)
    pixels = batch * p * q
    slices = max(1, min(-(-PROGRAMS // (columns * clients)), pixels // (4 * tiles.pixels)))
    turns = -(-pixels // (slices * tiles.pixels))
    part = x.new_empty(clients, slices, tall, span, channels, many, dtype=torch.float32)
    bias_part = x.new_empty(clients, slices, many if biased else 0, dtype=torch.float32)
    over = left > 0 or (q - 1) * stride * group + span > width
    sizes = (channels, height, width, many, p, q, tall, span, stride, stride * group, top, left, over, biased)
    blocks = (tiles.pixels, block_m, block_r, exactness())
    _kernels().filter_gradient[columns, slices, clients](
        x.contiguous(), grad.contiguous(), part, bias_part, pixels, slices, turns, *sizes, *blocks, **_how(tiles)
    )
    found = _gradients(x, grad, size, biased)
    form = (slices, tall, wide, filters, channels, group, span, stride, biased)
    grid = (-(-found[0][0].numel() // COLLECTED), clients)
    _kernels().collect[grid](part, bias_part, *found, *form, COLLECTED, min(32, 1 << (slices - 1).bit_length()))
    return found


def _convolve(
    x: Tensor, laid_out: Tensor, bias: Tensor | None, y: Tensor, pixels: int, sizes: tuple[int, ...], tiles: Tiles
) -> None:
    channels, filters, rows, span = sizes[0], sizes[3], sizes[6], sizes[8]
    block_m, block_r = power(rows * filters, tiles.filters), power(span * channels, tiles.taps)
    grid = (-(-pixels // tiles.pixels), -(-rows * filters // block_m), len(x))
    blocks = (tiles.pixels, block_m, block_r, exactness())
    biased = 0 if bias is None else bias.shape[1]
    bias = y if bias is None else bias.contiguous()  # a stand-in that is never read
    _kernels().convolution[grid](x.contiguous(), laid_out, bias, y, pixels, *sizes, biased, *blocks, **_how(tiles))


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


BLOCK, COLLECTED = 512, 64  # elements a program of the kernels that only move them
PROGRAMS = 1024  # enough to fill a large GPU several times


def _tiles(x: Tensor, channels: int, filters: int, wide: int, stride: int, columns: int) -> Tiles:
    """Tiles of a convolution, as they were fastest on an H200."""
    exact = x.dtype == torch.float32
    group = _group(channels, filters, stride, columns, exact)
    ahead = 3 if channels % 16 == 0 else 1  # what lies at odd places is not read ahead
    run, many = (stride * (group - 1) + wide) * channels, group * filters
    if exact:
        return Tiles(group, 64, 64, _taps(run), 4, ahead) if many <= 32 else Tiles(group, 128, 64, _taps(run), 8, ahead)
    return Tiles(group, 128, 64, _taps(run), 4, ahead)


def _gradient_tiles(x: Tensor, channels: int, filters: int, wide: int, stride: int, columns: int) -> Tiles:
    """Tiles of the filters' gradient, likewise."""
    exact = x.dtype == torch.float32
    group = _group(channels, filters, stride, columns, exact)
    run = (stride * (group - 1) + wide) * channels
    small = exact or channels % 16 != 0
    return Tiles(group, 32 if exact else 64, 64, _taps(run), 2 if small else 4, 3 if channels % 16 == 0 else 1)


def _group(channels: int, filters: int, stride: int, columns: int, exact: bool) -> int:
    """How many pixels share a run: the fewer channels, the more, so that the matrix units are filled."""
    if channels < 16:
        wanted = 4 if filters <= 8 else 2
    else:
        wanted = 2 if stride == 1 and channels <= (16 if exact else 32) else 1
    return next(group for group in (wanted, 2, 1) if columns % group == 0)


def _taps(run: int) -> int:
    """The block of taps that wastes least on a run; the larger of two equals."""
    return min((64, 32), key=lambda block: -(-run // block) * block)


def power(count: int, most: int) -> int:
    """The next power of two, from 16 up to `most`."""
    return max(16, min(most, 1 << (count - 1).bit_length()))


def _how(tiles: Tiles) -> dict[str, int]:
    return {"num_warps": tiles.warps, "num_stages": tiles.stages}


def exactness() -> str:
    """How float32 factors are multiplied: rounded to TF32, or split in three for float32's own accuracy."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


@cache
def _kernels() -> Any:
    from fedhead.engine import convolve_kernels

    return convolve_kernels
