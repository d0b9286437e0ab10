"""Layer activations by name."""

from __future__ import annotations

import torch

from fedhead.models import build, weights
from fedhead.models.layers import activations, names


def test_simplecnn_shows_the_seven_layers_of_table_6() -> None:
    model = build("simplecnn", (3, 32, 32), 10)
    x = torch.randn(2, 3, 32, 32)
    out = activations(model, x)
    assert list(out) == names(model)
    shapes = [tuple(t.shape[1:]) for t in out.values()]
    assert shapes == [(6, 14, 14), (16, 5, 5), (120,), (84,), (84,), (256,), (10,)]
    assert torch.equal(out["classifier"], model(x).logits)
    assert torch.equal(out["extractor.3"], model(x).h)


def test_other_weights() -> None:
    model, other = build("mlp", (4,), 3, seed=0, norm="batch"), build("mlp", (4,), 3, seed=1, norm="batch")
    x = torch.randn(5, 4)
    out = activations(model, x, weights(other))
    assert torch.equal(out["classifier"], other.eval()(x).logits)
    assert model.training
    assert not any(m._forward_hooks for m in model.modules())


def test_an_etf_model_shows_its_projection() -> None:
    assert names(build("mlp", (4,), 3, head="etf"))[-2:] == ["projection", "classifier"]
