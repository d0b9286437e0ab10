"""Small linear layers of stacked clients: product, bias and the casts around them in one kernel for all clients, and
another for the way back.

The layers of a small network take as long to launch as to compute, so what counts is how few kernels they are.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.executors.kernels.common import available, exactness, power

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
    x, weight = x.contiguous(), weight.contiguous()
    (clients, batch, entering), leaving = x.shape, weight.shape[1]
    y, form = x.new_empty(clients, batch, leaving), Form(batch, leaving, entering)
    added = y if bias is None else bias.contiguous()  # a stand-in that is never read
    grid = (form.programs, clients)
    _kernels().forth[grid](x, weight, added, y, *form, bias is not None, *form.blocks, exactness(), num_warps=4)
    return y


@torch.library.custom_op("fedhead::stacked_linear_back", mutates_args=())
def stacked_back(x: Tensor, weight: Tensor, grad: Tensor, whole: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `stacked`'s input (empty unless `whole`), and of its weight and bias, these in float32."""
    x, weight, grad = x.contiguous(), weight.contiguous(), grad.contiguous()
    found = _gradients(x, weight, whole)
    (clients, batch, entering), leaving = x.shape, grad.shape[2]
    input_form, weight_form = Form(batch, entering, leaving), Form(leaving, entering, batch)
    first = input_form.programs if whole else 0
    blocks = (*input_form.blocks, *weight_form.blocks, exactness())
    grid = (first + weight_form.programs, clients)
    _kernels().back[grid](x, weight, grad, *found, batch, entering, leaving, first, *blocks, num_warps=4)
    return found


@stacked.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[1])


@stacked_back.register_fake
def _(x: Tensor, weight: Tensor, grad: Tensor, whole: bool) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(x, weight, whole)


def _gradients(x: Tensor, weight: Tensor, whole: bool) -> tuple[Tensor, Tensor, Tensor]:
    exact = weight.new_empty(weight.shape, dtype=torch.float32)
    return x.new_empty(x.shape if whole else (0,)), exact, exact.new_empty(weight.shape[:2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
    x, weight = ctx.saved_tensors
    whole = ctx.needs_input_grad[0]
    dx, dw, db = stacked_back(x, weight, grad, whole)
    return dx if whole else None, dw.to(weight.dtype), None if ctx.biased is None else db.to(ctx.biased)


stacked.register_autograd(_backward, setup_context=_save)


# -- launching ------------------------------------------------------------------------------------------------------
class Form(NamedTuple):
    """A product of [rows, inner] with [inner, columns]."""

    rows: int
    columns: int
    inner: int

    @property
    def blocks(self) -> tuple[int, int, int]:
        """What a program computes at a time."""
        return power(self.rows, 64), power(self.columns, 32), power(self.inner, 64)

    @property
    def programs(self) -> int:
        """How many it takes."""
        return -(-self.rows // self.blocks[0]) * -(-self.columns // self.blocks[1])


@cache
def _kernels() -> Any:
    from fedhead.executors.kernels import linear_kernels

    return linear_kernels
