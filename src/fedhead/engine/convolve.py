"""Convolutions of stacked clients, all clients in one kernel.

Under `vmap` a convolution with a filter of its own for every client becomes a grouped one, which cuDNN mostly runs
client by client. Here it is one implicit matrix product a client, all of them launched at once: pixels are gathered as
patches where they are multiplied, so nothing is laid out in memory. One kernel serves the forward pass and the gradient
of the input (a convolution of the dilated gradient with the flipped filters), a second one the gradient of the filters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class StackedConvolutions(TorchFunctionMode):
    """Within this context, plain two-dimensional convolutions under `vmap` run as one kernel for all clients."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take over `conv2d` where it is plain; leave all else as it is."""
        if func is torch.conv2d and not kwargs and len(args) == 7 and _plain(*args[3:]):
            x, weight, bias, stride, padding = args[:5]
            kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
            y = convolve(x.to(kind), weight.to(kind), stride[0], padding[0], padding[1])
            return y if bias is None else y + bias.to(kind).reshape(-1, 1, 1)
        return func(*args, **(kwargs or {}))


def available() -> bool:
    """Whether the compiler of the kernels is installed."""
    try:
        import triton  # noqa: F401  (only whether it can be imported)
    except ImportError:
        return False
    return True


def _plain(stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    return isinstance(padding, tuple) and stride[0] == stride[1] and tuple(dilation) == (1, 1) and groups == 1


@torch.library.custom_op("fedhead::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    """One client's `conv2d`, [B, C, H, W] with [O, C, k, l]; `top` and `left` are its padding."""
    return torch.conv2d(x, weight, None, stride, (top, left))


@convolve.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    x, weight, stride, top, left = args
    across, own = in_dims[:2]
    if own is None:  # one filter for all clients, as a frozen global model's: an ordinary, larger batch
        x = x.movedim(across, 0)
        y = torch.conv2d(x.flatten(0, 1), weight, None, stride, (top, left))
        return y.reshape(*x.shape[:2], *y.shape[1:]), 0
    weight = weight.movedim(own, 0)
    x = x.expand(info.batch_size, *x.shape) if across is None else x.movedim(across, 0)
    return stacked(x, weight, stride, top, left), 0


@torch.library.custom_op("fedhead::stacked_convolve", mutates_args=())
def stacked(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    """`conv2d` of every client: x [K, B, C, H, W], weight [K, O, C, k, l]."""
    side = _sides(x, weight, stride, top, left)
    return launch_convolution(x, weight, side, stride, top, left, 1)


@torch.library.custom_op("fedhead::stacked_convolve_input", mutates_args=())
def stacked_input(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    """The gradient of `stacked`'s input of the given size."""
    flipped = weight.flip(3, 4).transpose(1, 2)
    top, left = weight.shape[3] - 1 - top, weight.shape[4] - 1 - left
    return launch_convolution(grad, flipped, (height, width), 1, top, left, stride)


@torch.library.custom_op("fedhead::stacked_convolve_weight", mutates_args=())
def stacked_weight(x: Tensor, grad: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    """The gradient of `stacked`'s filters of the given size."""
    return launch_filter_gradient(x, grad, (height, width), stride, top, left)


@stacked.register_fake
def _(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[1], *_sides(x, weight, stride, top, left))


@stacked_input.register_fake
def _(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    return grad.new_empty(*grad.shape[:2], weight.shape[2], height, width)


@stacked_weight.register_fake
def _(x: Tensor, grad: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    return x.new_empty(x.shape[0], grad.shape[2], x.shape[2], height, width)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.form = inputs[2:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
    x, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    dx = stacked_input(grad, weight, *x.shape[3:], *ctx.form) if wanted[0] else None
    dw = stacked_weight(x, grad, *weight.shape[3:], *ctx.form) if wanted[1] else None
    return dx, dw, None, None, None


stacked.register_autograd(_backward, setup_context=_save)


def _sides(x: Tensor, weight: Tensor, stride: int, top: int, left: int) -> tuple[int, int]:
    height = (x.shape[3] + 2 * top - weight.shape[3]) // stride + 1
    return height, (x.shape[4] + 2 * left - weight.shape[4]) // stride + 1


# -- launching ------------------------------------------------------------------------------------------------------
# Pixels, taps and warps a program, and slices of the filters' gradients: taken by timing on an H200.
PIXELS, TAPS, WARPS = 128, 32, 4
SLOPE_PIXELS, SLICES, SLOPE_WARPS = 64, 16, 4


def launch_convolution(
    x: Tensor, weight: Tensor, out: tuple[int, int], stride: int, top: int, left: int, dilation: int
) -> Tensor:
    """Run the kernel of convolutions; `dilation` is that of the input, with zeros between its pixels."""
    clients, batch, channels, height, width = x.shape
    filters, tall, wide = weight.shape[1], *weight.shape[3:]
    by_tap = channels % 16 == 0
    weight = weight.permute(0, 3, 4, 1, 2) if by_tap else weight
    y = x.new_empty(clients, batch, filters, *out)
    pixels = batch * out[0] * out[1]
    block_m, block_r = _block(filters), _channels(channels) if by_tap else TAPS
    grid = (-(-pixels // PIXELS), -(-filters // block_m), clients)
    sizes = (channels, height, width, filters, *out, tall, wide, stride, top, left, dilation, by_tap)
    _kernels().convolution[grid](
        x.contiguous(), weight.contiguous(), y, pixels, *sizes, block_m, PIXELS, block_r, _exactness(), num_warps=WARPS
    )
    return y


def launch_filter_gradient(x: Tensor, grad: Tensor, size: tuple[int, int], stride: int, top: int, left: int) -> Tensor:
    """Run the kernel of the filters' gradients: parts over slices of the pixels, added up in a fixed order."""
    clients, batch, channels, height, width = x.shape
    filters, tall, wide = grad.shape[2], *grad.shape[3:]
    taps = channels * size[0] * size[1]
    pixels = batch * tall * wide
    by_tap = channels % 16 == 0
    block_m, block_r = _block(filters), _channels(channels) if by_tap else TAPS
    slices = max(1, min(SLICES, pixels // (4 * SLOPE_PIXELS)))
    turns = -(-pixels // (slices * SLOPE_PIXELS))
    part = x.new_empty(clients, slices, filters, taps, dtype=torch.float32)
    grid = (-(-taps // block_r) * -(-filters // block_m), slices, clients)
    sizes = (channels, height, width, filters, tall, wide, *size, stride, top, left, by_tap)
    blocks = (block_m, SLOPE_PIXELS, block_r, _exactness())
    _kernels().filter_gradient[grid](
        x.contiguous(), grad.contiguous(), part, pixels, slices, turns, *sizes, *blocks, num_warps=SLOPE_WARPS
    )
    total = part.sum(1).to(x.dtype)
    if by_tap:
        return total.reshape(clients, filters, *size, channels).permute(0, 1, 4, 2, 3).contiguous()
    return total.reshape(clients, filters, channels, *size)


def _block(filters: int) -> int:
    return max(16, min(64, 1 << (filters - 1).bit_length()))


def _channels(count: int) -> int:
    """The largest block that divides the channels."""
    return next(block for block in (64, 32, 16) if count % block == 0)


def _exactness() -> str:
    """How float32 factors are multiplied: rounded to TF32, or split in three for float32's own accuracy."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "tf32x3"


@cache
def _kernels() -> Any:
    from fedhead.engine import convolve_kernels

    return convolve_kernels
