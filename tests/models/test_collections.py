"""Models of Hugging Face by name, `hf:NAME`, and WordLlama's embeddings of texts."""

from __future__ import annotations

import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest
import torch

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.data.inputs import encoders


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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
