"""The kernels of stacked linear layers against plain ones in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedhead.executors.kernels.layers import StackedLayers
from fedhead.models.precision import set_precision
from gpu import DEVICE, KERNELS, compare

pytestmark = KERNELS


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("sizes", [(3, 5, 7, 4), (2, 64, 400, 120), (1, 70, 33, 130), (2, 16, 16, 10)])
def test_stacked_layers_and_their_gradients(sizes: tuple[int, ...], biased: bool) -> None:
    clients, batch, entering, leaving = sizes
    compare(nn.Linear(entering, leaving, bias=biased), clients, batch, entering)


def test_an_input_that_needs_no_gradient_gets_none() -> None:
    set_precision("fp32")
    x, weight = torch.randn(2, 5, 3, device=DEVICE), torch.randn(2, 4, 3, device=DEVICE, requires_grad=True)
    with StackedLayers():
        found = vmap(nn.functional.linear)(x, weight)
    (grad,) = torch.autograd.grad(found.sum(), weight)
    torch.testing.assert_close(grad, x.sum(1, keepdim=True).expand_as(grad))


def test_weights_that_all_clients_share_make_an_ordinary_layer() -> None:
    layer = nn.Linear(3, 4).to(DEVICE)
    x = torch.randn(2, 5, 3, device=DEVICE)
    with StackedLayers():
        found = vmap(layer)(x)
    torch.testing.assert_close(found, layer(x))
