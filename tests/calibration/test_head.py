"""Which heads count as linear in the features, whatever their weights and number format."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedhead.calibration.head import linear
from fedhead.models.heads import ETFHead, NormalizedLinear, PrototypeHead
from fedhead.models.split_model import SplitModel


class Own(nn.Linear):
    """A linear layer under another name, which has to be probed."""


class Bent(nn.Linear):
    """Almost linear: a slight curve in the features."""

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z + 1e-2 * z.square())


class BentNormalized(NormalizedLinear):
    """A subclass does not inherit the declaration that its base class is linear."""

    def forward(self, z: Tensor) -> Tensor:
        return super().forward(z.relu())


def trained(head: nn.Module, seed: int, dtype: torch.dtype) -> SplitModel:
    """A model whose head has weights as long training leaves them: large."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in head.parameters():
            p.copy_(30 * torch.randn(p.shape, generator=generator))
    return SplitModel(nn.Identity(), head).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head", [nn.Linear, NormalizedLinear, Own])
def test_trained_linear_heads_are_never_refused(head: type[nn.Linear], dtype: torch.dtype) -> None:
    assert all(linear(trained(head(256, 10), seed, dtype)) for seed in range(100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head", [Bent, BentNormalized, ETFHead, PrototypeHead])
def test_heads_that_are_not_linear_are_found(head: type[nn.Module], dtype: torch.dtype) -> None:
    assert not any(linear(trained(head(256, 10), seed, dtype)) for seed in range(100))


def test_a_probe_leaves_the_head_as_it_is() -> None:
    model = trained(Own(8, 3), 0, torch.bfloat16).train()
    linear(model)
    assert model.classifier.training
    assert next(model.classifier.parameters()).dtype == torch.bfloat16
