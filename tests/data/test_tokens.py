"""Integer inputs that are tokens reach an embedding as integers, on every executor."""

import numpy as np
import pytest
import torch
from torch import nn

import fedhead as fh


class Net(nn.Module):
    """An embedding under a linear classifier."""

    def __init__(self, vocabulary=50):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.hidden = nn.Linear(8 * 6, 8)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        assert x.dtype == torch.int64
        return self.fc(torch.tanh(self.hidden(self.embedding(x).flatten(1))))


def federation(**settings):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, (120, 6))
    x[0, 0] = 49
    return fh.Federation.from_arrays(x, (x[:, 0] > 25) * 1 + (x[:, 1] > 25), clients=3, **settings)


def test_tokens_train_and_calibrate_alike_on_loop_and_stack():
    torch.manual_seed(0)
    model, fed = fh.split(Net()), federation(layout="tokens", test=0.25)
    assert (fed.train.x.dtype, fed.largest_token) == (torch.int64, 49)
    settings = {"rounds": 2, "lr": 0.5, "batch_size": 16, "stages": ["ccvr"], "device": "cpu"}
    loop, stack = (fh.run(fed, model, "fedprox", executor=name, **settings) for name in ("loop", "stack"))
    for name, value in loop.server["model"].items():
        assert torch.allclose(value, stack.server["model"][name], atol=1e-5), name
        if name.endswith("embedding.weight"):
            assert not torch.equal(value, model.extractor.embedding.weight)
    assert loop.accuracy == stack.accuracy
    statistics = fh.statistics_of(model, fed.test.x, fed.test.y, transform=fed.transform)
    assert statistics.count.sum() == 30


def test_tokens_are_never_cast_without_a_word():
    with pytest.raises(fh.BadInput, match='state layout="features" or layout="tokens"'):
        federation()
    with pytest.raises(fh.BadInput, match=r"it does not take tokens 0 … 49 of shape \(6,\) \(index out of range"):
        fh.run(federation(layout="tokens"), fh.split(Net(vocabulary=40)), rounds=1)
    with pytest.raises(fh.BadInput, match="standard is for numbers, the samples are tokens"):
        federation(layout="tokens", normalize="standard")


def test_a_model_for_numbers_refuses_tokens():
    with pytest.raises(fh.BadInput, match=r"model mlp can't be used: .* does not take tokens 0 … 49"):
        fh.run(federation(layout="tokens"), "mlp", rounds=1)
