"""Small linear layers of stacked clients: one kernel for product, bias and casts, another for the gradients.

Launching the kernels of a small network takes as long as computing them, so their number matters.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedhead.executors.kernels.common import available, clients_first, dot_precision, load, next_power_of_two

MAX_WEIGHTS = 1 << 18  # maximum elements of a weight; libraries are faster for large products


def supports(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernel supports a layer and Triton is installed."""
    plain = x.dim() == 2 and weight.dim() == 2 and x.dtype != torch.float64
    return plain and weight.numel() <= MAX_WEIGHTS and available()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `nn.functional.linear` for a client in a stack."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    y: Tensor = apply(x.to(kind), weight, bias)
    return y


# -- operators ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::linear", mutates_args=())
def apply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute one client's layer in the dtype of x: [B, I] with [O, I]."""
    return _ordinary(x, weight, bias)


def _ordinary(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


@apply.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    x, weight, bias = args
    x_dim, weight_dim, bias_dim = in_dims
    if weight_dim is None and bias_dim is None:  # shared weights, such as a frozen global model's: one larger batch
        x = x.movedim(x_dim, 0)
        return _ordinary(x.flatten(0, 1), weight, bias).reshape(*x.shape[:2], -1), 0
    count = info.batch_size
    bias = None if bias is None else clients_first(bias, bias_dim, count)
    return stacked(clients_first(x, x_dim, count), clients_first(weight, weight_dim, count), bias), 0


@torch.library.custom_op("fedhead::stacked_linear", mutates_args=())
def stacked(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute the layer of every client: x [K, B, I], weight [K, O, I], bias [K, O]."""
    x, weight = x.contiguous(), weight.contiguous()
    (clients, batch, in_features), out_features = x.shape, weight.shape[1]
    y, shape = x.new_empty(clients, batch, out_features), ProductShape(batch, out_features, in_features)
    added = y if bias is None else bias.contiguous()  # a placeholder that is never read
    grid = (shape.programs, clients)
    load("linear_kernels").forward[grid](
        x, weight, added, y, *shape, bias is not None, *shape.blocks, dot_precision(), num_warps=4
    )
    return y


@torch.library.custom_op("fedhead::stacked_linear_back", mutates_args=())
def stacked_back(x: Tensor, weight: Tensor, grad: Tensor, needs_input: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of `stacked`: of its input (empty unless `needs_input`), weight and bias (float32)."""
    x, weight, grad = x.contiguous(), weight.contiguous(), grad.contiguous()
    outputs = _gradients(x, weight, needs_input)
    (clients, batch, in_features), out_features = x.shape, grad.shape[2]
    input_shape, weight_shape = (
        ProductShape(batch, in_features, out_features),
        ProductShape(out_features, in_features, batch),
    )
    first = input_shape.programs if needs_input else 0
    blocks = (*input_shape.blocks, *weight_shape.blocks, dot_precision())
    grid = (first + weight_shape.programs, clients)
    load("linear_kernels").backward[grid](
        x, weight, grad, *outputs, batch, in_features, out_features, first, *blocks, num_warps=4
    )
    return outputs


@stacked.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:2], weight.shape[1])


@stacked_back.register_fake
def _(x: Tensor, weight: Tensor, grad: Tensor, needs_input: bool) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(x, weight, needs_input)


def _gradients(x: Tensor, weight: Tensor, needs_input: bool) -> tuple[Tensor, Tensor, Tensor]:
    exact = weight.new_empty(weight.shape, dtype=torch.float32)
    return x.new_empty(x.shape if needs_input else (0,)), exact, exact.new_empty(weight.shape[:2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
    x, weight = ctx.saved_tensors
    needs_input = ctx.needs_input_grad[0]
    dx, dw, db = stacked_back(x, weight, grad, needs_input)
    return dx if needs_input else None, dw.to(weight.dtype), None if ctx.biased is None else db.to(ctx.biased)


stacked.register_autograd(_backward, setup_context=_save)


# -- launching ------------------------------------------------------------------------------------------------------
class ProductShape(NamedTuple):
    """Shape of a product of [rows, inner] with [inner, columns]."""

    rows: int
    columns: int
    inner: int

    @property
    def blocks(self) -> tuple[int, int, int]:
        """Size of the block that one program computes."""
        return next_power_of_two(self.rows, 64), next_power_of_two(self.columns, 32), next_power_of_two(self.inner, 64)

    @property
    def programs(self) -> int:
        """Number of programs."""
        return -(-self.rows // self.blocks[0]) * -(-self.columns // self.blocks[1])
