"""Small linear layers of stacked clients: product, bias and the casts around them in one kernel for all clients.

The layers of a small network take as long to launch as to compute, so what counts is how few kernels they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.stacked.common import available, exactness, power

LARGEST = 1 << 18  # numbers of a weight; libraries are better at large products


def takes(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel here is made for such a layer, and its compiler is installed."""
    plain = x.dim() == 2 and weight.dim() == 2 and x.dtype != torch.float64
    return plain and weight.numel() <= LARGEST and available()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`nn.functional.linear` for a client in a stack."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    y: Tensor = apply(x.to(kind), weight, bias)
    return y


# -- operators ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::linear", mutates_args=())
def apply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """One client's layer in the type of x, [B, I] with [O, I]."""
    return _ordinary(x, weight, bias)


def _ordinary(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


@apply.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    x, weight, bias = args
    across, own, own_bias = in_dims
    if own is None and own_bias is None:  # weights of all clients, as a frozen global model's: one larger batch
        x = x.movedim(across, 0)
        return _ordinary(x.flatten(0, 1), weight, bias).reshape(*x.shape[:2], -1), 0

    def every(t: Tensor, dim: int | None) -> Tensor:
        return t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)

    return stacked(every(x, across), every(weight, own), None if bias is None else every(bias, own_bias)), 0


@torch.library.custom_op("fedhead::stacked_linear", mutates_args=())
def stacked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The layer of every client: x [K, B, I], weight [K, O, I], bias [K, O]."""
    return _product(x.contiguous(), weight.contiguous().transpose(1, 2), bias, x.dtype)[0]


@torch.library.custom_op("fedhead::stacked_linear_input", mutates_args=())
def stacked_input(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of `stacked`'s input."""
    return _product(grad.contiguous(), weight.contiguous(), None, grad.dtype)[0]


@torch.library.custom_op("fedhead::stacked_linear_weight", mutates_args=())
def stacked_weight(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `stacked`'s weight and bias, in float32."""
    return _product(grad.contiguous().transpose(1, 2), x.contiguous(), None, torch.float32, summed=True)


@stacked.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[1])


@stacked_input.register_fake
def _(grad: Tensor, weight: Tensor) -> Tensor:
    return grad.new_empty(*grad.shape[:2], weight.shape[2])


@stacked_weight.register_fake
def _(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    shape = (len(x), grad.shape[2], x.shape[2])
    return x.new_empty(shape, dtype=torch.float32), x.new_empty(shape[:2], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    x, weight = ctx.saved_tensors
    grad = grad.contiguous()
    dx = dw = db = None
    if ctx.needs_input_grad[0]:
        dx = stacked_input(grad, weight)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dw, db = stacked_weight(x, grad)
        dw, db = dw.to(weight.dtype), None if ctx.biased is None else db.to(ctx.biased)
    return dx, dw, db


stacked.register_autograd(_backward, setup_context=_save)


# -- launching ------------------------------------------------------------------------------------------------------
def _product(
    a: Tensor, b: Tensor, bias: Tensor | None, kind: torch.dtype, summed: bool = False
) -> tuple[Tensor, Tensor]:
    """a [K, M, R] times b [K, R, N], each contiguous or the transpose of that; and a's sums over R if `summed`."""
    clients, rows, inner = a.shape
    columns = b.shape[2]
    c = a.new_empty(clients, rows, columns, dtype=kind)
    sums = a.new_empty(clients, rows if summed else 0, dtype=torch.float32)
    block_m, block_n, block_r = power(rows, 64), power(columns, 32), power(inner, 64)
    grid = (-(-rows // block_m), -(-columns // block_n), clients)
    sizes = (rows, columns, inner, *a.stride()[1:], *b.stride()[1:], bias is not None, summed)
    added = c if bias is None else bias.contiguous()  # a stand-in that is never read
    _kernels().product[grid](a, b, added, c, sums, *sizes, block_m, block_n, block_r, exactness(), num_warps=4)
    return c, sums


@cache
def _kernels() -> Any:
    from fedhead.stacked import linear_kernels

    return linear_kernels
