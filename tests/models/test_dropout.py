"""Keyed dropout: the same masks on every executor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small import CLASSES, federation
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.core.training import global_generators
from fedhead.models.check import require_runnable
from fedhead.models.dropout import Dropout, KeyedDropout, dropout_key, may_call_dropout
from fedhead.models.split_model import SplitModel
from fedhead.models.wrap import split


def drop(layer: Dropout, x: Tensor, key: Tensor) -> Tensor:
    with dropout_key(key):
        return layer(x)


def test_keeps_the_mean_and_drops_the_share() -> None:
    out = drop(Dropout(0.3), torch.ones(200, 500), torch.tensor(7))
    zeros = (out == 0).float().mean().item()
    assert abs(zeros - 0.3) < 0.005  # 100,000 draws: a deviation of 0.0015
    torch.testing.assert_close(out[out != 0], torch.full_like(out[out != 0], 1 / 0.7))


def test_the_same_key_gives_the_same_mask_and_each_call_its_own() -> None:
    layer, x = Dropout(0.5), torch.ones(8, 16)
    assert torch.equal(drop(layer, x, torch.tensor(1)), drop(layer, x, torch.tensor(1)))
    assert not torch.equal(drop(layer, x, torch.tensor(1)), drop(layer, x, torch.tensor(2)))
    with dropout_key(torch.tensor(1)):
        first, second = layer(x), layer(x)
    assert torch.equal(first, drop(layer, x, torch.tensor(1)))
    assert not torch.equal(first, second)


def test_contexts_nest() -> None:
    layer, x = Dropout(0.5), torch.ones(8, 16)
    with dropout_key(torch.tensor(1)):
        first = layer(x)
        inner = drop(layer, x, torch.tensor(9))
        second = layer(x)
    assert torch.equal(inner, drop(layer, x, torch.tensor(9)))
    with dropout_key(torch.tensor(1)):
        assert torch.equal(first, layer(x))
        assert torch.equal(second, layer(x))


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("keys", [torch.arange(3), torch.arange(12).reshape(3, 4)], ids=["batch", "sample"])
def test_vmap_equals_a_loop(keys: Tensor, channels: bool) -> None:
    layer, x = Dropout(0.5, channels), torch.randn(3, 4, 5, 2, 2, dtype=torch.float64)
    stacked = vmap(lambda x, key: drop(layer, x, key))(x, keys)
    assert torch.equal(stacked, torch.stack([drop(layer, x[k], keys[k]) for k in range(3)]))
    assert stacked.dtype == torch.float64
    assert (stacked == 0).any()


def test_whole_channels_are_dropped() -> None:
    out = drop(Dropout(0.5, channels=True), torch.ones(6, 8, 3, 3), torch.tensor(3)).flatten(2)
    assert ((out == 0).all(dim=2) | (out == 2).all(dim=2)).all()
    assert 0 < (out == 0).float().mean() < 1


def test_a_sample_keeps_its_mask_in_any_batch() -> None:
    layer, x, keys = Dropout(0.5), torch.ones(5, 20), torch.tensor([11, 12, 13, 14, 15])
    order = torch.tensor([3, 0, 4])
    assert torch.equal(drop(layer, x, keys)[order], drop(layer, x[order], keys[order]))


def test_evaluation_and_zero_probability_need_no_key() -> None:
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_training_without_a_key_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no key: call the model inside .*dropout_key\(key\)"):
        Dropout(0.5)(torch.ones(2, 2))
    with pytest.raises(BadInput, match="3 keys for 2 rows"):
        drop(Dropout(0.5), torch.ones(2, 2), torch.arange(3))
    with pytest.raises(BadInput, match=r"p: 1.0 is out of range, it must be at least 0 and below 1"):
        Dropout(1.0)


def test_the_key_is_gone_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), dropout_key(torch.tensor(1)):
        raise ZeroDivisionError
    with pytest.raises(BadInput, match="no key"):
        Dropout(0.5)(torch.ones(2, 2))


class Functional(nn.Module):
    """A user's model that calls F.dropout, as its forward or a function that it calls."""

    def __init__(self, draw: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__()
        self.draw = draw
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(self.draw(self.body(x), self.training)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, training: F.dropout(x, 0.5, training),
        lambda x, training: F.dropout(input=x, training=training),
        lambda x, training: F.dropout2d(x, 0.5, training=training, inplace=True),
    ],
)
def test_functions_draw_by_key_the_same_on_every_executor(draw: Callable[[Tensor, bool], Tensor]) -> None:
    with global_generators.seeded(0):
        model = split(Functional(draw))
        plain = split(Functional(lambda x, training: x))

    def weights(model: SplitModel, executor: str) -> Tensor:
        found = fh.run(federation(), model, rounds=2, lr=0.1, executor=executor).weights
        assert found is not None
        return torch.cat([t.flatten() for t in found.values()])

    loop = weights(model, "loop")
    assert torch.equal(loop, weights(model, "loop"))  # not from the global generator
    torch.testing.assert_close(loop, weights(model, "stack"), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(loop, weights(plain, "loop"), atol=1e-3)
    require_runnable(model, (1, 6, 6), CLASSES)


def test_functions_drop_what_the_layers_drop() -> None:
    x, key = torch.ones(8, 6, 4, 4), torch.tensor(5)
    pairs = [(F.dropout, Dropout(0.3)), (F.dropout2d, Dropout(0.3, channels=True))]
    for function, layer in pairs:
        with dropout_key(key), KeyedDropout():
            dropped = function(x, 0.3)
        with dropout_key(key):
            assert torch.equal(dropped, layer(x))
    with KeyedDropout(), pytest.raises(BadInput, match=r"F\.dropout: p"), dropout_key(key):
        F.dropout(x, 1.5)
    with KeyedDropout(), dropout_key(key):
        assert F.dropout(x, 0.3, training=False) is x


def test_models_with_own_modules_may_call_dropout() -> None:
    assert may_call_dropout(split(Functional(lambda x, training: F.dropout(x, 0.5, training))))
    assert not may_call_dropout(nn.Sequential(nn.Linear(2, 2), Dropout(0.5)))
