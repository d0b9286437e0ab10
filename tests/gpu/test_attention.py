"""Attention of stacked clients: the fused kernels have no backward pass for all lengths under `vmap`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedhead.executors.kernels.layers import StackedLayers
from gpu import GPU

pytestmark = GPU


@pytest.mark.parametrize("tokens", [5, 197])
def test_attention_has_gradients_at_any_length(tokens: int) -> None:
    x = torch.randn(3, 2, 3, tokens, 64, device="cuda", requires_grad=True)

    def attend(own: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(own, own, own)

    with StackedLayers():
        found = vmap(attend)(x)
    plain = torch.stack([attend(one) for one in x])
    torch.testing.assert_close(found, plain, atol=1e-3, rtol=1e-3)
    grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, plain)]
    torch.testing.assert_close(*grads, atol=1e-2, rtol=1e-2)
