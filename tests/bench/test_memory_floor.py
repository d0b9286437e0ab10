"""The bytes that a step must move, counted by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedhead.bench.memory_floor import copy_bandwidth, floor_bytes
from fedhead.models.split_model import SplitModel


@pytest.mark.parametrize("width", [2, 4])
def test_each_activation_is_moved_five_times_and_each_parameter_seven_times(width: int) -> None:
    """6 inputs, 4 features, a ReLU of these, 3 classes: 4 + 4 + 3 activations and 28 + 15 parameters."""
    extractor = nn.Sequential(nn.Linear(6, 4), nn.ReLU())
    model = SplitModel(extractor, nn.Linear(4, 3))
    batch = 8
    assert floor_bytes(model, (6,), batch, width) == 5 * width * batch * (4 + 4 + 3) + 7 * 4 * (28 + 15)
    assert not extractor[0]._forward_hooks, "the model is left as it is"


def test_a_copy_reads_and_writes_each_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedhead.bench.memory_floor.seconds", lambda work, device: 0.5)
    assert copy_bandwidth(torch.device("cpu")) == 2 * 2**27 / 0.5
