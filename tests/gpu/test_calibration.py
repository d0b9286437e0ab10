"""Heads on a GPU: rounding does not make a linear head look bent, and graphs train heads as the CPU does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from fedhead.calibration.head import linear
from fedhead.calibration.retrain import retrain
from fedhead.core.training.optimizers import SGD
from fedhead.models.precision import set_precision
from fedhead.models.split_model import SplitModel, weights
from gpu import GPU

pytestmark = GPU


class Own(nn.Linear):
    """A linear layer under another name, which has to be probed."""


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("head", [nn.Linear, Own])
def test_trained_heads_are_linear_in_every_precision(head: type[nn.Linear], precision: str) -> None:
    dtype = torch.bfloat16 if set_precision(precision) else torch.float32
    try:
        for seed in range(100):
            torch.manual_seed(seed)
            made = head(256, 10)
            with torch.no_grad():
                made.weight.mul_(500)  # far over what initialization gives, as after long training
            assert linear(SplitModel(nn.Identity(), made).to("cuda", dtype)), seed
    finally:
        set_precision("fp32")


@pytest.mark.parametrize("kind", [nn.Linear, Own])
def test_heads_are_trained_by_a_graph_as_on_the_cpu(kind: type[nn.Linear]) -> None:
    torch.manual_seed(0)
    model = SplitModel(nn.Identity(), kind(16, 5))
    y = torch.arange(3000) % 5
    z = torch.randn(3000, 16) + torch.randn(5, 16)[y]
    heads = []
    for device in ("cpu", "cuda"):
        head = weights(model.to(device)).part("classifier").params
        # 6 epochs of 94 steps, the last of them partial: 4 graphs' worth and a remainder
        heads.append(retrain(model, head, z, y, SGD(0.05, 0.9, 1e-4), epochs=6, batch_size=32, key=1).to("cpu"))
    for name, expected in heads[0].items():
        torch.testing.assert_close(heads[1][name], expected, atol=1e-4, rtol=1e-4)


def test_heads_of_several_runs_are_trained_in_threads() -> None:
    torch.manual_seed(0)
    y = torch.arange(5000) % 5
    z = torch.randn(5000, 16) + torch.randn(5, 16)[y]

    def train(seed: int) -> torch.Tensor:
        model = SplitModel(nn.Identity(), nn.Linear(16, 5)).to("cuda")
        head = {"classifier.weight": torch.zeros(5, 16).cuda(), "classifier.bias": torch.zeros(5).cuda()}
        return retrain(model, head, z, y, SGD(0.05, 0.9), epochs=20, batch_size=32, key=seed)["classifier.weight"]

    alone = [train(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(train, range(6)))
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
