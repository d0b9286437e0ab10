"""The kernels of a batch's mean and variance against plain operations in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedhead.executors.kernels.batch_statistics import mean_and_variance
from fedhead.executors.kernels.layers import StackedLayers
from fedhead.models.batch_norm import MaskedBatchNorm
from fedhead.models.precision import set_precision
from gpu import DEVICE, KERNELS, compare

pytestmark = KERNELS

SHAPES = [(3, 5, 7, 4, 6), (2, 64, 16, 8, 8), (1, 3, 130, 2, 2), (4, 2, 33, 1, 1)]


def expected(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x[:count].double(), (0, 2, 3), correction=0)
    return mean, var


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_padding_enters_neither_mean_nor_variance(shape: tuple[int, ...], kind: torch.dtype) -> None:
    clients, batch = shape[:2]
    generator = torch.Generator().manual_seed(0)
    x = (3 + 2 * torch.randn(shape, generator=generator)).to(kind)
    counts = [1 + k * (batch - 1) // max(1, clients - 1) for k in range(clients)]
    samples = torch.stack([torch.arange(batch) < count for count in counts])
    x[~samples] = 1e4  # would be seen
    wanted = [torch.stack(each) for each in zip(*(expected(x[k], counts[k]) for k in range(clients)), strict=True)]
    place = x.to(DEVICE), samples.to(DEVICE)
    found = vmap(lambda own, mine: mean_and_variance(own, mine, None, None))(*place)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.cpu().double(), theirs, atol=1e-5, rtol=1e-5)


def test_without_two_values_the_running_statistics_count() -> None:
    x, samples = torch.randn(2, 3, 5, device=DEVICE), torch.tensor([[True, False, False], [False, False, False]])
    running = torch.rand(2, 2, 5, device=DEVICE)
    found = vmap(mean_and_variance)(x, samples.to(DEVICE), *running)
    for mine, theirs in zip(found, running, strict=True):
        assert torch.equal(mine, theirs)


def test_a_constant_channel_has_no_variance() -> None:
    mean, var = vmap(lambda x: mean_and_variance(x, None, None, None))(torch.full((2, 40, 3, 9), 7.3, device=DEVICE))
    torch.testing.assert_close(mean, torch.full_like(mean, 7.3))
    assert not var.any()


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_stacked_layers_and_their_gradients(shape: tuple[int, ...]) -> None:
    compare(nn.BatchNorm2d(shape[2], track_running_stats=False), shape[0], *shape[1:])


def test_a_masked_layer_is_that_of_the_samples_alone() -> None:
    set_precision("fp32")
    x = torch.randn(2, 6, 4, 3, 3, device=DEVICE)
    samples = torch.tensor([[True] * 6, [True] * 4 + [False] * 2], device=DEVICE)

    def applied(own: Tensor, mine: Tensor) -> Tensor:
        with MaskedBatchNorm(mine, 6):
            return nn.functional.batch_norm(own, None, None, training=True)

    with StackedLayers():
        found = vmap(applied)(x, samples)
    for k, count in enumerate((6, 4)):
        plain = nn.functional.batch_norm(x[k, :count].double(), None, None, training=True)
        torch.testing.assert_close(found[k, :count].double(), plain, atol=1e-5, rtol=1e-5)
