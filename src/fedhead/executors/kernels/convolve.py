"""Convolutions of stacked clients, with one kernel for all clients.

Under `vmap` a convolution with different filters per client becomes a grouped one, which cuDNN mostly runs client by
client. Here it is one implicit matrix product per client, all in one launch; no patches are stored in memory. One
kernel computes the forward pass and the gradient of the input, which is a convolution of the gradient with the flipped
filters. A second kernel computes the gradient of the filters. Images are channels last, and the layers between
convolutions keep that format.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedhead.executors.kernels.common import available, clients_first
from fedhead.executors.kernels.convolve_launch import gradients, launch_forward, launch_input, launch_weight, sides


def supports(x: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """Return whether the kernels support the arguments of `conv2d` and Triton is installed."""
    plain = isinstance(padding, tuple) and stride[0] == stride[1] and tuple(dilation) == (1, 1) and groups == 1
    return plain and x.dim() == 4 and x.dtype != torch.float64 and available()


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Compute `torch.conv2d` for a client in a stack."""
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    images = x.to(kind).permute(0, 2, 3, 1).contiguous()
    y: Tensor = convolve(images, weight, bias, stride[0], *padding).permute(0, 3, 1, 2)
    return y


# -- operators ------------------------------------------------------------------------------------------------------
@torch.library.custom_op("fedhead::convolve", mutates_args=())
def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    """Convolve one client's images in the dtype of x: [B, H, W, C] with [O, C, k, l]; `top` and `left` are padding."""
    return _ordinary(x, weight, bias, stride, top, left)


def _ordinary(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    y = torch.conv2d(x.permute(0, 3, 1, 2), weight.to(x.dtype), bias, stride, (top, left))
    return y.permute(0, 2, 3, 1).contiguous()


@convolve.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
    x, weight, bias, stride, top, left = args
    x_dim, weight_dim, bias_dim = in_dims[:3]
    if weight_dim is None and bias_dim is None:  # shared filters, such as a frozen global model's: one larger batch
        x = x.movedim(x_dim, 0)
        y = _ordinary(x.flatten(0, 1), weight, bias, stride, top, left)
        return y.reshape(*x.shape[:2], *y.shape[1:]), 0
    count = info.batch_size
    bias = None if bias is None else clients_first(bias, bias_dim, count)
    return stacked(clients_first(x, x_dim, count), clients_first(weight, weight_dim, count), bias, stride, top, left), 0


@torch.library.custom_op("fedhead::stacked_convolve", mutates_args=())
def stacked(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    """Compute the convolution of every client: x [K, B, H, W, C], weight [K, O, C, k, l], bias [K, O]."""
    return launch_forward(x, weight, bias, stride, top, left)


@torch.library.custom_op("fedhead::stacked_convolve_input", mutates_args=())
def stacked_input(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    """Compute the gradient of the input of `stacked`, of the given size."""
    return launch_input(grad, weight, (height, width), stride, top, left)


@torch.library.custom_op("fedhead::stacked_convolve_weight", mutates_args=())
def stacked_weight(
    x: Tensor, grad: Tensor, height: int, width: int, biased: bool, stride: int, top: int, left: int
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of the filters and of the bias (empty if not `biased`) of `stacked`, in float32."""
    return launch_weight(x, grad, (height, width), biased, stride, top, left)


@stacked.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, top: int, left: int) -> Tensor:
    return x.new_empty(*x.shape[:2], *sides(x, weight, stride, top, left), weight.shape[1])


@stacked_input.register_fake
def _(grad: Tensor, weight: Tensor, height: int, width: int, stride: int, top: int, left: int) -> Tensor:
    return grad.new_empty(*grad.shape[:2], height, width, weight.shape[2])


@stacked_weight.register_fake
def _(
    x: Tensor, grad: Tensor, height: int, width: int, biased: bool, stride: int, top: int, left: int
) -> tuple[Tensor, Tensor]:
    return gradients(x, grad, (height, width), biased)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.form = inputs
    ctx.save_for_backward(x, weight)
    ctx.biased = None if bias is None else bias.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None]:
    x, weight = ctx.saved_tensors
    grad = grad.contiguous()
    dx = dw = db = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dw, db = stacked_weight(x, grad, *weight.shape[3:], ctx.biased is not None, *ctx.form)
        dw, db = dw.to(weight.dtype), None if ctx.biased is None else db.to(ctx.biased)
    if ctx.needs_input_grad[0]:  # after the filters' kernel, which leaves shared data in the L2 cache
        dx = stacked_input(grad, weight, *x.shape[2:4], *ctx.form)
    return dx, dw, db, None, None, None


stacked.register_autograd(_backward, setup_context=_save)
