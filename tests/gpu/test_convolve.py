"""The kernels of stacked convolutions against plain ones in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import vmap

from fedhead.executors.kernels.layers import StackedLayers
from gpu import DEVICE, KERNELS, compare

pytestmark = KERNELS

# clients, batch, channels, height, width, filters, kernel, stride, padding
FORMS = [
    (2, 2, 3, 9, 10, 6, 5, 1, 0),
    (2, 2, 3, 8, 8, 6, 5, 1, 0),
    (3, 2, 4, 8, 9, 20, 3, 2, 1),
    (2, 1, 5, 7, 8, 3, 1, 2, 0),
    (2, 2, 2, 8, 9, 17, 3, 1, 1),
    (2, 2, 16, 6, 8, 16, 3, 1, 1),
    (2, 1, 32, 6, 6, 16, 3, 2, 1),
    (2, 1, 32, 4, 4, 32, 3, 1, 1),
    (1, 2, 48, 4, 5, 32, 1, 2, 0),
    (1, 1, 64, 3, 3, 64, 3, 1, 1),
    (1, 2, 3, 11, 12, 4, 5, 3, 2),
    (1, 1, 2, 3, 3, 600, 1, 1, 1),
]


@pytest.mark.parametrize("biased", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("form", FORMS)
def test_stacked_convolutions_and_their_gradients(form: tuple[int, ...], biased: bool) -> None:
    clients, batch, channels, height, width, filters, kernel, stride, padding = form
    layer = nn.Conv2d(channels, filters, kernel, stride, padding, bias=biased)
    compare(layer, clients, batch, channels, height, width)


def test_a_filter_that_all_clients_share_is_an_ordinary_convolution() -> None:
    layer = nn.Conv2d(3, 4, 3).to(DEVICE)
    x = torch.randn(2, 5, 3, 6, 6, device=DEVICE)
    with StackedLayers():
        found = vmap(layer)(x)
    torch.testing.assert_close(found, torch.stack([layer(one) for one in x]))
