"""Models of other libraries by name, `timm:NAME` and `hf:NAME`, and WordLlama's embeddings of texts."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.data.inputs import encoders


class BatchNormAct(nn.BatchNorm2d):
    """As timm's: a normalization with an activation in it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu()


def fake_timm() -> Any:
    """Stand in for timm, which needs a torchvision that is not here."""

    def create_model(name: str, pretrained: bool, num_classes: int, in_chans: int) -> nn.Module:
        assert num_classes == 0
        if pretrained:
            raise RuntimeError("no network")
        net = nn.Sequential(nn.Conv2d(in_chans, 6, 3), nn.BatchNorm2d(6), BatchNormAct(6), nn.AdaptiveAvgPool2d(1))
        net.append(nn.Flatten())
        net.num_features = 6  # type: ignore[assignment]  # as timm's models have it
        return net

    made: Any = ModuleType("timm")
    made.create_model, made.list_models = create_model, lambda: ["small_net", "small_vit"]
    made.is_model = lambda name: name in made.list_models()
    config = {"input_size": (3, 160, 160), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    made.get_pretrained_cfg = lambda name: SimpleNamespace(**config, fixed_input_size=name == "small_vit")
    return made


def test_models_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", fake_timm())
    model = fh.build("timm:small_net(pretrained=false)", (3, 16, 16), 5)
    assert (model.features, model.classes) == (6, 5)
    x = torch.randn(4, 3, 16, 16)
    assert torch.equal(model.train()(x).h, model.eval()(x).h)  # both kinds of BatchNorm keep their statistics
    images = torch.randint(0, 256, (24, 3, 16, 16), dtype=torch.uint8)
    federation = fh.Federation.from_arrays(images, torch.arange(24) % 2, clients=2, layout="nchw", test=0.25)
    settings: dict[str, Any] = {"rounds": 1, "freeze": ["extractor"], "cache_features": True}
    assert fh.run(federation, "timm:small_net(pretrained=false)", **settings).accuracy is not None
    found = fh.oneshot(federation, "timm:small_net(pretrained=false)", ["ncm"])
    assert found.rows[0]["accuracy"] is not None
    with pytest.raises(BadInput, match=r"timm:small_net can't be made \(.*no network.*pretrained=false"):
        fh.build("timm:small_net", (3, 16, 16), 5)
    with pytest.raises(BadInput, match=r"timm:small_vit takes images of 160x160, not 16x16: set resize=160"):
        fh.build("timm:small_vit(pretrained=false)", (3, 16, 16), 5)
    assert fh.build("timm:small_vit(pretrained=false)", (3, 160, 160), 5).features == 6
    with pytest.raises(BadInput, match=r"timm has no such model; did you mean timm:small_net\?"):
        fh.build("timm:smal_net", (3, 16, 16), 5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "features"), [("resnet18", 512), ("vit_tiny_patch16_224", 192)])
def test_real_models_of_timm(name: str, features: int) -> None:
    pytest.importorskip("timm")
    images = torch.randint(0, 256, (24, 3, 224, 224), dtype=torch.uint8)
    federation = fh.Federation.from_arrays(images, torch.arange(24) % 2, clients=2, layout="nchw", test=0.25)
    model = f"timm:{name}(pretrained=false)"
    held = fh.extract_features(federation, model)
    assert held.input_shape == (features,)
    built = fh.build(model, federation.input_shape, 2)
    sample = torch.randn(2, 3, 224, 224)
    assert torch.equal(built.train()(sample).h, built.eval()(sample).h)  # BatchNorm keeps its statistics
    if name.startswith("vit"):
        with pytest.raises(BadInput, match="takes images of 224x224, not 32x32: set resize=224"):
            fh.build(model, (3, 32, 32), 2)
    result = fh.run(federation, model, rounds=1, freeze=["extractor"], cache_features=True, stages=["ncm"])
    assert result.stages["ncm"].accuracy is not None


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match=r"model timm:resnet18 needs the package timm, which can't be imported here"):
        fh.build("timm:resnet18", (3, 32, 32), 5)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match=r"needs the package transformers.*fedhead\[hf\]"):
        fh.build("hf:bert", (16,), 5)
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"wordllama is not installed: pip install 'fedhead\[text\]'"):
        fh.build("wordllama", (16,), 5)
    with pytest.raises(BadInput, match=r"wordllama is not installed"):
        encoders.encode_texts(["a"], "wordllama")


@pytest.mark.slow
def test_models_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(**small, vocab_size=50, max_position_embeddings=16)
    net = transformers.BertForSequenceClassification(config)
    net.save_pretrained(tmp_path / "bert")
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 50, (40, 8))
    x = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    federation = fh.Federation.from_arrays(x, (ids[:, 0] > 25) * 1, clients=2, test=0.25)
    found = fh.extract_features(federation, f"hf:{tmp_path / 'bert'}")
    given = {name: torch.from_numpy(value) for name, value in x.items()}
    model = fh.build(f"hf:{tmp_path / 'bert'}", federation.input_shape, 2)
    with torch.no_grad():
        pooled = net.eval().bert(**given).pooler_output
        torch.testing.assert_close(model.eval()(given).h, pooled, atol=1e-6, rtol=1e-5)
    assert found.input_shape == (16,)
    config.save_pretrained(tmp_path / "alone")
    fh.build(f"hf:{tmp_path / 'alone' / 'config.json'}", (8,), 3)
    vit = transformers.ViTConfig(**small, image_size=16, patch_size=8)
    vit.save_pretrained(tmp_path / "vit")
    assert fh.build(f"hf:{tmp_path / 'vit'}", (3, 16, 16), 4).features == 16
    with pytest.raises(BadInput, match="can't be made for images"):
        fh.build(f"hf:{tmp_path / 'bert'}", (3, 16, 16), 4)
    with pytest.raises(BadInput, match="there is no such folder or file"):
        fh.build("hf:./nowhere", (8,), 3)


@pytest.mark.skipif(
    util.find_spec("wordllama") is None or util.find_spec("tokenizers") is None, reason="needs fedhead[text]"
)
def test_features_of_wordllama_are_the_means_of_its_embeddings(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    texts = ["hello world, how are you?", "no", ""]
    spec = util.find_spec("wordllama")
    assert spec is not None
    folder = Path((spec.submodule_search_locations or [""])[0])
    table = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"].float()
    x = torch.from_numpy(encoders.encode_texts(texts, "wordllama(16)").x)
    model = fh.build("wordllama", (16,), 2).eval()
    with torch.no_grad():
        z = model(x).z
    for row, tokens in zip(z[:2], x, strict=False):
        own = tokens[tokens < 32000]
        assert 1 <= len(own) <= 8
        torch.testing.assert_close(row, table[own].mean(0), atol=1e-6, rtol=0)
    assert not z[2].any()
    joined = "".join(text * 3 for text in texts[:2] * 6).encode()
    ends = np.cumsum([0, *(len((text * 3).encode()) for text in texts[:2] * 6)])
    bodies, y, site = np.frombuffer(joined, np.uint8), np.arange(12) % 2, np.arange(12) // 6
    np.savez(tmp_path / "texts.npz", text=bodies, offsets=ends, y=y, site=site)
    found = fh.oneshot(tmp_path / "texts.npz", "wordllama", ["ncm"])
    assert found.rows[0]["accuracy"] == 100
    with pytest.raises(BadInput, match="takes tokens, not inputs of shape"):
        fh.build("wordllama", (3, 8, 8), 2)
