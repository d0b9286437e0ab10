"""The kernels of normalization and its gradients, alone and fused with what follows, against plain operations."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from fedhead.executors.compiling.step import trace
from fedhead.executors.kernels import normalize as kernels
from fedhead.executors.kernels.fusion import fuse
from fedhead.executors.kernels.layers import StackedLayers
from fedhead.models.batch_norm import MaskedBatchNorm, batch_statistics
from fedhead.models.precision import set_precision
from gpu import DEVICE, KERNELS

pytestmark = KERNELS

SHAPES = [(3, 5, 7, 4, 6), (2, 64, 16, 8, 8), (1, 3, 130, 2, 2), (4, 2, 33, 1, 1)]


@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients(shape: tuple[int, ...], masked: bool, rectify: bool) -> None:
    clients, batch, channels = shape[:3]
    generator = torch.Generator().manual_seed(1)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    x, slope, skip = 3 + 2 * drawn(*shape), drawn(*shape), drawn(*shape)
    weight, bias = 1 + 0.3 * drawn(clients, channels), drawn(clients, channels)
    counts = [1 + k * (batch - 1) // max(1, clients - 1) if masked else batch for k in range(clients)]
    samples = torch.stack([torch.arange(batch) < count for count in counts])
    slope[~samples] = 0.0  # padding has no loss
    running = drawn(clients, channels), 1 + drawn(clients, channels).abs()
    positions = x[0, 0, 0].numel()
    statistics, plain, wanted = [], [], []
    for k, count in enumerate(counts):
        own, gain, shift = (t[k].clone().requires_grad_() for t in (x, weight, bias))
        many = count * positions > 1
        mean, var = (None, None) if many else (running[0][k], running[1][k])
        y = nn.functional.batch_norm(own[:count], mean, var, gain, shift, training=many)
        y = torch.relu(y + skip[k, :count]) if rectify else y
        grads = torch.autograd.grad(y, (own, gain, shift), slope[k, :count])
        plain.append(y.detach())
        wanted.append(grads)
        statistics.append(batch_statistics(x[k, :count], None, None, None, count) if many else (mean, var))

    def rows(t: Tensor) -> Tensor:
        return t.float().movedim(2, -1).reshape(clients, batch, -1, channels).to(DEVICE)

    mean, var = (torch.stack([each[i] for each in statistics]).float().to(DEVICE) for i in range(2))
    own = weight.float().to(DEVICE), bias.float().to(DEVICE), mean, var, samples.to(DEVICE) if masked else None, 1e-5, 2
    y = kernels.stacked(rows(x), rows(skip) if rectify else None, *own, rectify)
    above = rows(slope) if not rectify else rows(slope) * (y > 0)  # with a skip connection the sign is not x's alone
    found = kernels.gradients(rows(x), above, *own, False)
    for k, count in enumerate(counts):
        mine = y[k, :count].cpu().double()
        torch.testing.assert_close(mine, plain[k].movedim(1, -1).reshape(mine.shape), atol=1e-4, rtol=1e-4)
        theirs = wanted[k][0][:count].movedim(1, -1).reshape(mine.shape)
        torch.testing.assert_close(found[0][k, :count].cpu().double(), theirs, atol=1e-4, rtol=1e-4)
        for own_found, own_wanted in zip(found[1:], wanted[k][1:], strict=True):
            torch.testing.assert_close(own_found[k].cpu().double(), own_wanted, atol=1e-3, rtol=1e-4)


def test_the_sign_of_a_rectified_output_is_found_again_from_the_input() -> None:
    x, slope = torch.randn(2, 3, 2, 20, 5, device=DEVICE).unbind()
    own = torch.rand(4, 3, 5, device=DEVICE).unbind()
    y = kernels.stacked(x, None, *own, None, 1e-5, 1, True)
    assert 0 < int((y > 0).sum()) < y.numel()
    for mine, theirs in zip(
        kernels.gradients(x, slope, *own, None, 1e-5, 1, True),
        kernels.gradients(x, slope * (y > 0), *own, None, 1e-5, 1, False),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_what_is_not_a_number_is_not_rectified_away() -> None:
    x = torch.full((1, 2, 3, 4), torch.nan, device=DEVICE)
    own = torch.ones(4, 1, 4, device=DEVICE).unbind()
    assert kernels.stacked(x, None, *own, None, 1e-5, 1, True).isnan().all()


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_have_derivatives(masked: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    exact = [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((2, 6, 3, 4), (2, 3), (2, 3))]
    samples = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])

    def loss(x: Tensor, weight: Tensor, bias: Tensor, mine: Tensor) -> Tensor:
        with MaskedBatchNorm(mine, 6) if masked else nullcontext():
            y = nn.functional.batch_norm(x, None, None, weight, bias, training=True)
        return ((y.square() * y.cos()).sum((1, 2)) * (mine if masked else 1)).sum()

    def second(device: str, kind: torch.dtype, layers: AbstractContextManager[object]) -> tuple[Tensor, ...]:
        own = [t.to(device, kind).requires_grad_() for t in exact]
        with layers:
            losses = vmap(loss)(*own, samples.to(device))
        grads = torch.autograd.grad(losses.sum(), own, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), own)

    wanted = second("cpu", torch.float64, nullcontext())
    for mine, theirs in zip(second(DEVICE, torch.float32, StackedLayers()), wanted, strict=True):
        torch.testing.assert_close(mine.cpu().double(), theirs, atol=1e-2, rtol=1e-3)


class Block(nn.Module):
    """Convolutions with normalization: one followed by a ReLU, one by an addition and a ReLU, one by neither."""

    def __init__(self, late: bool):
        super().__init__()
        self.late = late
        self.first, self.second, self.third, self.fourth = (nn.Conv2d(3, 3, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3, track_running_stats=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        if self.late:  # what is added is computed after the normalization, and normalized as well
            y = torch.relu(self.norms[1](self.second(y)) + self.norms[3](self.fourth(y)))
        else:
            y = torch.relu(y + self.norms[1](self.second(y)))
        return self.norms[2](self.third(y)).mean((1, 2, 3))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_fused_step_computes_the_same(masked: bool, late: bool) -> None:
    set_precision("fp32")
    torch.manual_seed(0)
    model = Block(late).to(DEVICE)
    names = [name for name, _ in model.named_parameters()]
    weights = [torch.stack([p.detach() + 0.1 * torch.randn_like(p) for _ in range(2)]) for p in model.parameters()]
    x = torch.randn(2, 6, 3, 8, 8, device=DEVICE)
    samples = torch.tensor([[True] * 6, [True] * 4 + [False] * 2], device=DEVICE)

    def loss(mine: Tensor, rows: Tensor, *own: Tensor) -> Tensor:
        def applied() -> Tensor:
            return torch.func.functional_call(model, dict(zip(names, own, strict=True)), (mine,))

        if not masked:
            return applied().square().sum()
        with MaskedBatchNorm(rows, 6):
            return (applied().square() * rows).sum()

    def step(*tensors: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in tensors]
        with torch.enable_grad(), StackedLayers():
            losses = vmap(loss)(x, samples, *leaves)
        grads = torch.autograd.grad(losses.sum(), leaves, allow_unused=True, materialize_grads=True)
        return [losses.detach(), *grads]

    graph = trace(step, weights)
    expected = graph(*weights)
    before = [str(node.target) for node in graph.graph.nodes]
    fused = fuse(graph)
    after = [str(node.target) for node in fused.graph.nodes]
    assert before.count("aten.relu.default") == 2
    assert "aten.relu.default" not in after
    assert before.count("aten.threshold_backward.default") - after.count("aten.threshold_backward.default") == 1
    for mine, theirs in zip(fused(*weights), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
