"""Keyed dropout: the same masks on every executor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from fedhead.core.errors import BadInput
from fedhead.models.dropout import Dropout, dropout_key


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
