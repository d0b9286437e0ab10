"""Models by name: repeatable weights, checked parameters, and errors that say what fits."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch

from fedhead.core.components.ranges import AtLeast
from fedhead.core.system.errors import BadInput
from fedhead.models import MODELS, build, register, weights
from fedhead.models.build_many import build_many
from fedhead.models.registry import FeatureExtractor, with_head


def same(a: Any, b: Any) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = weights(build("simplecnn", (3, 32, 32), 10, seed=5))
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    assert same(first, weights(build("simplecnn", (3, 32, 32), 10, seed=5)))
    assert torch.equal(state, torch.random.get_rng_state()), "the global generator must stay as it was"
    assert not same(first, weights(build("simplecnn", (3, 32, 32), 10, seed=6)))


def test_the_head_does_not_change_the_extractor() -> None:
    parts = [weights(build("digitscnn", (1, 8, 8), 10, head=head)).part("extractor") for head in ("linear", "etf")]
    assert same(*parts)


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("simplecn", (3, 32, 32), {}, "unknown model 'simplecn': did you mean 'simplecnn'"),
        ("mlp", (4,), {"head": "eft"}, "unknown head 'eft': did you mean 'etf'"),
        ("mlp", (4,), {"hiden": 3}, "unknown parameter of model mlp 'hiden': did you mean 'hidden'"),
        ("efficientnetb0", (3, 32, 32), {"width": 3}, "unknown parameter of model efficientnetb0 'width'"),
        ("mlp", (4,), {"hidden": 3}, "model mlp: hidden: 3 is not a list in brackets, each a whole number"),
        ("mlp", (4,), {"hidden": [3, -1]}, "model mlp: hidden: -1 is out of range, it must be at least 1"),
        ("mlp", (4,), {"dropout": 1.0}, r"model mlp: dropout: 1.0 is out of range, it must be at least 0 and below 1"),
        ("mlp", (4,), {"dropout": "much"}, "model mlp: dropout: 'much' is not a number"),
        ("resnet20", (3, 32, 32), {"norm": "layer"}, "norm: 'layer' is not one of batch, group"),
        ("resnet18", (3, 32, 32), {"strides": [1]}, r"strides: \[1\] is not a list of 2 in brackets"),
        ("resnet18", (3, 32, 32), {"strides": [1, 4]}, r"strides: \[1, 4\] would have no effect with stem=3x3"),
        ("digitscnn", (1, 8, 8), {"channels": True}, "channels: True is not a whole number"),
        ("simplecnn", (1, 8, 8), {}, "'simplecnn' can't take 8x8 images: it needs at least 16x16.*'digitscnn'"),
        ("efficientnet_lite0", (3, 28, 28), {"pretrained": False}, "at least 32x32.*, or resize them: resize: 224$"),
        ("resnet18", (3, 8, 8), {"stem": "7x7"}, "'resnet18' can't take 8x8 images"),
        ("resnet20", (64,), {}, r"'resnet20' takes images of \(channels, height, width\), not inputs of \(64,\)"),
        ("mlp", {"x": (4,), "mask": (4,)}, {}, "model mlp takes one array, the samples have the inputs x, mask: give"),
        ("mlp", (4,), {"dim": 4}, "dim is a parameter of the etf head alone"),
        ("mlp", (4,), {"feature_layer": 0}, "model mlp: feature_layer: 0 is out of range, it must be at least 1"),
    ],
)
def test_bad_input_is_refused_by_name(name: str, shape: Any, options: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build(name, shape, 10, **options)


def test_no_output_is_refused() -> None:
    with pytest.raises(BadInput, match="model mlp: classes: 0 is out of range, it must be at least 1"):
        build("mlp", (4,), 0)


@pytest.mark.parametrize("side", [16, 17, 28, 32, 45])
@pytest.mark.parametrize("name", ["simplecnn", "digitscnn", "protocnn"])
def test_flattening_models_take_every_size_they_promise(name: str, side: int) -> None:
    model = build(name, (1, side, side + 3), 4).eval()
    assert model(torch.zeros(2, 1, side, side + 3)).logits.shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "side", "options"),
    [("resnet20", 4, {}), ("digitscnn", 4, {}), ("alexnet", 4, {}), ("mobilenetv2", 8, {}), ("resnet18", 8, {})]
    + [(name, 16, {}) for name in ("shufflenetv2", "googlenet", "efficientnetb0")]
    + [("resnet18", 16, {"stem": "7x7"}), ("densenet121", 8, {"growth": 4, "blocks": (1, 1, 1, 1)})],
)
def test_the_smallest_images_work(name: str, side: int, options: Any) -> None:
    model = build(name, (3, side, side), 4, **options).eval()
    assert torch.isfinite(model(torch.rand(2, 3, side, side)).logits).all()
    with pytest.raises(BadInput, match=f"at least {side}x{side}"):
        build(name, (3, side - 1, side), 4, **options)


def test_a_name_is_registered_once() -> None:
    before = dict(MODELS)
    with pytest.raises(BadInput, match=r"'mlp' is taken already by fedhead\.models\.architectures\.mlp:mlp"):
        register("mlp", "again")(lambda shape: FeatureExtractor(torch.nn.Flatten(), 1))
    assert before == MODELS
    assert all(entry.description for entry in MODELS.values())


def test_a_model_of_ones_own() -> None:
    @register("tiny", "one layer, for this test")
    def tiny(shape: tuple[int, ...], width: float = 1.5, mode: str = "plain", extra: object = None) -> FeatureExtractor:
        layer = torch.nn.Linear(shape[0], int(4 * width))
        return FeatureExtractor(layer, int(4 * width))

    try:
        assert build("tiny", (3,), 2, width=2, extra=[None]).features == 8
        with pytest.raises(BadInput, match="model tiny: mode: 3 is not text"):
            build("tiny", (3,), 2, mode=3)
    finally:
        del MODELS["tiny"]


def test_models_built_in_several_threads_start_as_they_would_alone() -> None:
    alone = [weights(build("mlp", (1, 8, 8), 10, seed=seed)) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        beside = list(pool.map(lambda seed: weights(build("mlp", (1, 8, 8), 10, seed=seed)), [*range(6)] * 5))
    for place, found in enumerate(beside):
        for name, value in alone[place % 6].items():
            assert torch.equal(value, found[name]), (place, name)


def own_net(shape: Any, width: int = 5) -> FeatureExtractor:
    return FeatureExtractor(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, width)), width)


class OwnHead(torch.nn.Linear):
    """A head with a parameter of its own."""

    def __init__(self, features: int, classes: int, gain: Annotated[float, AtLeast(0)] = 1.0):
        super().__init__(features, classes, bias=False)
        self.gain = gain


def test_a_function_and_a_class_stand_for_a_model_and_a_head() -> None:
    model = build(own_net, (4,), 3, head=OwnHead, width=6)
    assert (model.features, model.head) == (6, "OwnHead")
    assert build(functools.partial(own_net, width=7), (4,), 3).features == 7
    assert with_head(model, OwnHead).head == "OwnHead"
    assert [m.features for m in build_many([(own_net, {}), ("mlp(hidden=[5])", {})], (4,), 3, seed=0)] == [5, 5]
    with pytest.raises(BadInput, match=r"^OwnHead is the class OwnHead, no model: name a function"):
        build(OwnHead, (4,), 3)
    with pytest.raises(BadInput, match=r"dict is the class dict, no head: name a subclass of torch.nn.Module or a"):
        build(own_net, (4,), 3, head=dict)
    with pytest.raises(BadInput, match=r"^model own_net: width: 'a' is not a whole number"):
        build(own_net, (4,), 3, width="a")


def test_parameters_in_the_text_equal_those_beside_it() -> None:
    beside = build("mlp", (4,), 3, head="etf", hidden=(6, 5), scale=2.0)
    assert same(weights(build("mlp([6, 5], head=etf, scale=2)", (4,), 3)), weights(beside))
    with pytest.raises(BadInput, match=r"^model mlp\(hidden=\[6\]\): hidden is given twice"):
        build("mlp(hidden=[6])", (4,), 3, hidden=(6,))
    with pytest.raises(BadInput, match=r"^model mlp\(head=etf\): head is given twice"):
        build("mlp(head=etf)", (4,), 3, head="linear")


def test_a_head_has_parameters_too(tmp_path: Path) -> None:
    assert build("mlp", (4,), 3, head="prototype(scale=3)").classifier.scale.item() == 3.0
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nclass Gain(nn.Linear):\n"
        "    def __init__(self, features, classes, gain: float = 1.0):\n"
        "        super().__init__(features, classes)\n        self.gain = gain\n"
    )
    model = build("mlp(head=mine.py:Gain(gain=0.5))", (4,), 3, folders=[tmp_path])
    assert (model.head, model.classifier.gain) == ("mine.py:Gain", 0.5)
    with pytest.raises(BadInput, match=r"^head mine.py:Gain\(a\): gain: 'a' is not a number"):
        build("mlp", (4,), 3, head="mine.py:Gain(a)", folders=[tmp_path])
    with pytest.raises(BadInput, match=r"there is no file mine\.py in"):
        build("mlp", (4,), 3, head="mine.py:Gain")
