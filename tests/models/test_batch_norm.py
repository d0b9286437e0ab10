"""Batch normalization of stacked clients, with and without padding, against torch's own, client by client."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedhead.core.system.errors import BadInput
from fedhead.executors.kernels import batch_statistics
from fedhead.executors.kernels.layers import StackedLayers
from fedhead.models.batch_norm import MaskedBatchNorm, batch_norm, may_normalize_batches


@pytest.mark.parametrize("shape", [(3, 6, 4), (3, 6, 4, 5, 2)], ids=["vectors", "images"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
def test_outputs_gradients_and_running_statistics(shape: tuple[int, ...], training: bool, affine: bool) -> None:
    kind = nn.BatchNorm1d if len(shape) == 3 else nn.BatchNorm2d
    layer = kind(shape[2], momentum=0.3, affine=affine).double().train(training)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    own = {n: torch.rand(shape[0], *p.shape, dtype=torch.float64) for n, p in layer.named_parameters()}
    stats = {n: torch.rand(shape[0], shape[2], dtype=torch.float64) for n in ("running_mean", "running_var")}
    slope = torch.randn(shape, dtype=torch.float64)

    def forward(x: torch.Tensor, own: dict[str, torch.Tensor], stats: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(layer, {**own, **stats}, (x,))  # type: ignore[no-any-return]

    one_by_one = {n: t.clone() for n, t in stats.items()}
    plain = torch.stack(
        [forward(x[k], *({n: t[k] for n, t in d.items()} for d in (own, one_by_one))) for k in range(3)]
    )
    together = {n: t.clone() for n, t in stats.items()}
    with StackedLayers():
        found = vmap(forward)(x, own, together)
    torch.testing.assert_close(found, plain, atol=1e-12, rtol=1e-10)
    slopes = [torch.autograd.grad(y, x, slope)[0] for y in (found, plain)]
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(together, one_by_one, atol=1e-12, rtol=1e-10)
    assert torch.equal(together["running_mean"], stats["running_mean"]) != training


def test_bfloat16_is_normalized_in_float32() -> None:
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    x = (1000 + torch.randn(2, 8, 4, 6, 6)).bfloat16()
    with StackedLayers():
        found = vmap(layer)(x)
    assert found.dtype == torch.bfloat16
    wide = torch.stack([nn.functional.batch_norm(one, None, None, training=True) for one in x.float()])
    torch.testing.assert_close(found.float(), wide, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole"])
def test_a_stack_may_have_a_kernel_for_the_statistics(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def kernel(x: torch.Tensor, *others: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        shapes.append(tuple(x.shape))
        return x.mean((0, 2, 3)), torch.ones(x.shape[1])

    monkeypatch.setattr(batch_statistics, "supports", lambda x: True)
    monkeypatch.setattr(batch_statistics, "mean_and_variance", kernel)
    x = torch.randn(2, 6, 4, 3, 3)

    def forward(own: torch.Tensor) -> torch.Tensor:
        with MaskedBatchNorm(torch.ones(6, dtype=torch.bool), 6) if padded else nullcontext():
            return nn.functional.batch_norm(own, None, None, training=True, eps=0)

    with StackedLayers():
        found = vmap(forward)(x.requires_grad_())
    assert shapes == [(6, 4, 3, 3)]
    torch.testing.assert_close(found, x - x.mean((1, 3, 4), keepdim=True))


# -- padding --------------------------------------------------------------------------------------------------------
COUNTS = (6, 4, 2)  # samples of three clients in batches of six


def masked(counts: tuple[int, ...], size: int = 6) -> torch.Tensor:
    return torch.arange(size) < torch.tensor(counts)[:, None]


@pytest.mark.parametrize("shape", [(3, 6, 4), (3, 6, 4, 5), (3, 6, 4, 5, 2), (3, 6, 4, 3, 2, 2)])
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("stacked_layers", [nullcontext, StackedLayers], ids=["cpu", "gpu"])
def test_padding_rows_enter_nothing(shape: tuple[int, ...], affine: bool, stacked_layers: type) -> None:
    """Against torch's own layer on the samples alone, client by client; padding is far from them on purpose."""
    kind = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][len(shape) - 3]
    layer = kind(shape[2], momentum=0.3, affine=affine).double()
    samples = masked(COUNTS)
    x = torch.randn(shape, dtype=torch.float64) + 3
    x[~samples] += 100
    x.requires_grad_()
    own = {
        n: torch.rand(shape[0], *p.shape, dtype=torch.float64, requires_grad=True) for n, p in layer.named_parameters()
    }
    stats = {n: torch.rand(shape[0], shape[2], dtype=torch.float64) for n in ("running_mean", "running_var")}
    slope = torch.randn(shape, dtype=torch.float64)

    def forward(x: torch.Tensor, own: dict[str, torch.Tensor], stats: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(layer, {**own, **stats}, (x,))  # type: ignore[no-any-return]

    def leaving_out(x: torch.Tensor, samples: torch.Tensor, *tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        with MaskedBatchNorm(samples, len(x)):
            return forward(x, *tensors)

    alone = {n: t.clone() for n, t in stats.items()}
    parts = [({n: t[k] for n, t in own.items()}, {n: t[k] for n, t in alone.items()}) for k in range(3)]
    expected = [forward(x[k, :count], *parts[k]) for k, count in enumerate(COUNTS)]
    together = {n: t.clone() for n, t in stats.items()}
    with stacked_layers():
        found = vmap(leaving_out)(x, samples, own, together)
    torch.testing.assert_close(found[samples], torch.cat(expected), atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=1e-10)
    leaves = [x, *own.values()]
    slopes = torch.autograd.grad(found[samples], leaves, slope[samples])
    wanted = torch.autograd.grad(torch.cat(expected), leaves, slope[samples])
    torch.testing.assert_close(slopes, wanted, atol=1e-11, rtol=1e-9)


def test_the_gradient_is_that_of_the_masked_function_for_padding_rows_too() -> None:
    x = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
    scale, shift = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    samples = torch.tensor([True, True, False, True, False])

    def normalized(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return batch_norm(x, None, None, scale, shift, training=True, samples=samples)

    assert torch.autograd.gradcheck(normalized, (x, scale, shift), check_undefined_grad=False)


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_variance_the_running_statistics_serve_and_stay(count: int) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    layer = nn.BatchNorm1d(3).double()
    layer.running_mean.add_(0.5)  # type: ignore[union-attr]
    with MaskedBatchNorm(torch.arange(4) < count, 4):
        found = layer(x)
    assert torch.equal(layer.running_mean, torch.full((3,), 0.5, dtype=torch.float64))
    assert torch.equal(layer.running_var, torch.ones(3, dtype=torch.float64))
    expected = layer.eval()(x)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    slopes = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected)]
    torch.testing.assert_close(*slopes, atol=1e-12, rtol=0)


def test_one_sample_of_several_values_has_a_variance() -> None:
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    layers = [nn.BatchNorm1d(3).double() for _ in range(2)]
    with MaskedBatchNorm(torch.arange(4) < 1, 4):
        found = layers[0](x)[:1]
    torch.testing.assert_close(found, layers[1](x[:1]), atol=1e-12, rtol=0)
    torch.testing.assert_close(layers[0].running_var, layers[1].running_var, atol=1e-12, rtol=0)


def test_a_sample_without_running_statistics_is_its_own_mean() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    with MaskedBatchNorm(torch.arange(4) < 1, 4):
        found = nn.functional.batch_norm(x, None, None, training=True)
    assert found[0].abs().max() == 0
    assert torch.autograd.grad(found[0].sum(), x)[0].abs().max() == 0


def test_evaluation_and_other_layers_are_left_alone() -> None:
    x = torch.randn(4, 6, 5, 5)
    for layer in (nn.BatchNorm2d(6).eval(), nn.GroupNorm(2, 6), nn.LayerNorm([6, 5, 5]), nn.InstanceNorm2d(6)):
        plain = layer(x)
        with MaskedBatchNorm(torch.arange(4) < 2, 4):
            assert torch.equal(layer(x), plain)


def test_bfloat16_with_padding_is_normalized_in_float32() -> None:
    layer = nn.BatchNorm2d(4, track_running_stats=False)
    x = (1000 + 4 * torch.randn(2, 8, 4, 6, 6)).bfloat16()
    with MaskedBatchNorm(torch.arange(8) < 5, 8):
        found = vmap(layer)(x)
    assert found.dtype == torch.bfloat16
    wide = torch.stack([nn.functional.batch_norm(one[:5], None, None, training=True) for one in x.float()])
    torch.testing.assert_close(found[:, :5].float(), wide, atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("rows", "given", "text"),
    [
        (7, 4, "a BatchNorm layer gets 7 rows for a batch of 4 samples"),
        (8, 8, r"apply got 8 rows in a batch of 4, .*wei"),
    ],
)
def test_rows_that_are_not_those_of_the_batch_are_named(rows: int, given: int, text: str) -> None:
    with MaskedBatchNorm(torch.arange(4) < 2, given), pytest.raises(BadInput, match=text):
        nn.BatchNorm1d(3)(torch.randn(rows, 3))


def test_models_that_have_no_batchnorm_are_known() -> None:
    class Own(nn.Module):
        pass

    assert not may_normalize_batches(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.InstanceNorm1d(2)))
    assert may_normalize_batches(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    assert may_normalize_batches(nn.Sequential(nn.Linear(2, 2), Own()))


# -- second derivatives -----------------------------------------------------------------------------------------------
def normalized(samples: torch.Tensor | None, tracked: bool, *tensors: torch.Tensor) -> torch.Tensor:
    """The squares of normalized inputs, whose own second derivatives are not constant either."""
    x, weight, bias = tensors
    running = [torch.full((2,), 0.3, dtype=x.dtype), torch.full((2,), 0.7, dtype=x.dtype)] if tracked else [None, None]
    return batch_norm(x, *running, weight, bias, training=True, samples=samples).square()


CASES = list(itertools.product([(), (2,)], [None, 5, 3, 1], [True, False]))
CASES.remove(((), 1, False))  # one value without running statistics has the variance 0, at a kink


@pytest.mark.slow
@pytest.mark.parametrize(("positions", "count", "tracked"), CASES)
def test_second_derivatives(positions: tuple[int, ...], count: int | None, tracked: bool) -> None:
    torch.manual_seed(0)
    samples = None if count is None else torch.arange(5) < count
    shapes = [(5, 2, *positions), (2,), (2,)]
    tensors = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return normalized(samples, tracked, *tensors)

    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)


def test_second_derivatives_equal_torchs_own_without_the_padding_in_a_stack() -> None:
    torch.manual_seed(1)
    x, samples = torch.randn(3, 6, 4, dtype=torch.float64), masked(COUNTS)
    weight, bias = torch.rand(3, 4, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64)

    def penalty(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The squared norm of a gradient, as penalties on gradients have it."""
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    def loss(x: torch.Tensor, keep: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        with MaskedBatchNorm(keep, len(keep)):
            y = nn.functional.batch_norm(x, None, None, weight, bias, training=True)
        return (y.sin() * keep.unsqueeze(1)).sum()

    stacked = x.clone().requires_grad_()
    found = penalty(vmap(loss)(stacked, samples, weight, bias).sum(), stacked)
    for k, count in enumerate(COUNTS):
        own = x[k, :count].clone().requires_grad_()
        plain = nn.functional.batch_norm(own, None, None, weight[k], bias[k], training=True)
        torch.testing.assert_close(found[k, :count], penalty(plain.sin().sum(), own), atol=1e-9, rtol=1e-8)
