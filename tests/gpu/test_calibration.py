"""Heads on a GPU: rounding to TF32 and bfloat16 does not make a linear head look bent."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedhead.calibration.head import linear
from fedhead.models.precision import set_precision
from fedhead.models.split_model import SplitModel
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
