"""Batch normalization of stacked clients against torch's own, client by client."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedhead.executors.kernels.layers import StackedLayers


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
