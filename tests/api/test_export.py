"""Models as files for other programs: what is written gives the run's own scores, or is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedhead as fh
from fedhead.api import export
from fedhead.cli import call
from fedhead.core.system.errors import BadInput


class Net(nn.Module):
    """A user's network for small images."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Dropout(0.1), nn.Flatten())
        self.fc = nn.Linear(72, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x))


class Eigenvalues(nn.Module):
    """A network that ONNX can't express."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(64, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.flatten(1))
        return self.fc(h + torch.linalg.eigvals(torch.eye(4) + 0 * h[:, None]).abs())


def federation() -> fh.Federation:
    return fh.Federation.load("digits", "dirichlet(0.3)", clients=3, subset=90, client_test=0.2)


def trained(model: Any, method: Any = "fedprox", **settings: Any) -> fh.Result:
    return fh.run(federation(), model, method, rounds=1, lr=0.1, executor="loop", device="cpu", **settings)


@pytest.fixture(scope="module")
def run() -> fh.Result:
    return trained(fh.split(Net(), classifier="fc"), stages=[fh.CCVR(samples=20, epochs=1), "finetune"])


@pytest.mark.slow
def test_an_onnx_file_gives_the_same_scores(run: fh.Result, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="an optional extra")
    pytest.importorskip("onnxscript", reason="an optional extra")
    path = run.export(tmp_path / "a" / "model.onnx", normalize=True, stage="ccvr")
    session = onnxruntime.InferenceSession(str(path))
    x = run.trained.clients.federation.test.x
    for count in (1, 7, len(x)):
        (scores,) = session.run(None, {"x": x[:count].numpy()})
        np.testing.assert_allclose(scores, run.scores(x[:count], stage="ccvr"), atol=1e-5)


@pytest.mark.slow
def test_an_onnx_file_holds_a_quadratic_head(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="an optional extra")
    pytest.importorskip("onnxscript", reason="an optional extra")
    found = fh.run(federation(), fh.split(Net(), classifier="fc"), rounds=0, stages=[fh.QDA(shrinkage=0.5)])
    session = onnxruntime.InferenceSession(str(found.export(tmp_path / "model.onnx", normalize=True, stage="qda")))
    x = found.trained.clients.federation.test.x
    for count in (1, 7):
        (scores,) = session.run(None, {"x": x[:count].numpy()})
        np.testing.assert_allclose(scores, found.scores(x[:count], stage="qda"), rtol=1e-5, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("normalize", [True, False])
def test_an_exported_program_gives_the_same_scores(run: fh.Result, tmp_path: Path, normalize: bool) -> None:
    path = run.export(tmp_path / "model.pt2", normalize=normalize, client=1, stage="finetune")
    data = run.trained.clients.federation
    x = data.test.x if normalize else data.transform(data.test.x)
    with torch.no_grad():
        scores = torch.export.load(path).module()(x).numpy()
    np.testing.assert_allclose(scores, run.scores(data.test.x, client=1, stage="finetune"), atol=1e-5)


def test_a_module_takes_what_the_transform_gives(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    data = fh.Federation.from_arrays(x, np.arange(40) % 10, clients=2, layout="nhw")
    fh.run(data, "mlp(hidden=[4])", rounds=1, executor="loop", device="cpu", out=tmp_path / "run")
    found = fh.load(tmp_path / "run")  # without the data
    stored = data.train.x
    with torch.no_grad():
        scores = found.module()(found.transform(stored)).numpy()
    np.testing.assert_allclose(scores, found.scores(stored), atol=1e-5)
    torch.testing.assert_close(found.transform(stored), (stored - 127.5) / 127.5)  # as data.md says of bytes


def test_a_file_of_weights_has_the_users_names(run: fh.Result, tmp_path: Path) -> None:
    net = Net()
    net.load_state_dict(load_file(run.export(tmp_path / "model.safetensors")))
    x = run.trained.clients.federation.test.x
    with torch.no_grad():
        scores = net.eval()(run.trained.clients.federation.transform(x)).numpy()
    np.testing.assert_allclose(scores, run.scores(x), atol=1e-5)


@pytest.mark.slow
def test_a_model_that_onnx_can_not_express_is_named_and_the_run_is_not_lost(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="an optional extra")
    found = trained(fh.split(Eigenvalues(), classifier="fc"), out=tmp_path / "run")
    with pytest.raises(BadInput, match=r"model.onnx: ONNX can't express this model \(.*eig.*\); write a .pt2") as error:
        found.export(tmp_path / "model.onnx")
    assert "\n" not in str(error.value)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert fh.load(tmp_path / "run").finished


def test_what_was_written_wrong_is_not_left_behind(
    run: fh.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.torch.export, "load", lambda path: nn.Module())
    monkeypatch.setattr(nn.Module, "module", lambda self: lambda x: torch.zeros(len(x), 10), raising=False)
    with pytest.raises(BadInput, match=r"model.pt2 was not written: its scores differ from predict's by"):
        run.export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("path", "settings", "says"),
    [
        ("model.h5", {}, "model.h5: a model's file ends in .onnx, .pt2 or .safetensors"),
        ("model.safetensors", {"normalize": True}, "a file of weights can't hold the normalization"),
        ("model.pt2", {"client": 9}, "client: 9 is out of range"),
        ("model.pt2", {"stage": "ridge"}, "unknown stage 'ridge'"),
    ],
)
def test_what_can_not_be_written_is_named(
    run: fh.Result, tmp_path: Path, path: str, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        run.export(tmp_path / path, **settings)


def test_a_missing_extra_is_named(run: fh.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs onnx and onnxscript: install them with pip install 'fedhead\[export\]'"):
        run.export(tmp_path / "model.onnx")


def test_a_method_with_its_own_rule_is_refused(tmp_path: Path) -> None:
    found = trained("mlp(hidden=[4])", "fedproto")
    with pytest.raises(BadInput, match="fedproto predicts by its own rule"):
        found.export(tmp_path / "model.pt2", client=0)


def test_the_command_exports_a_run_without_its_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["digits", "rounds=1", "clients=2", "subset=60", "model.hidden=[4]", "--out", str(tmp_path / "run")]
    assert call(["run", *words, "--executor", "loop", "--quiet"]) == 0
    assert call(["export", str(tmp_path / "run"), "--out", str(tmp_path / "model.pt2"), "--normalize"]) == 0
    said = capsys.readouterr().out
    assert f"wrote {tmp_path / 'model.pt2'}, the model after the last round\n" in said
    assert "normalized" not in said  # the file does it
    x = federation().test.x
    with torch.no_grad():
        scores = torch.export.load(tmp_path / "model.pt2").module()(x).numpy()
    np.testing.assert_allclose(scores, fh.load(tmp_path / "run").scores(x), atol=1e-5)
    assert call(["export", str(tmp_path / "run"), "--out", str(tmp_path / "x.pt2"), "--stage", "ccvr"]) == 2
    assert call(["export", str(tmp_path / "run"), "--out", str(tmp_path / "plain.pt2")]) == 0
    said = capsys.readouterr().out
    assert f"normalized as in training (fedhead.load({str(tmp_path / 'run')!r}).transform(x)); with --normalize" in said


@pytest.mark.parametrize(
    ("stage", "kind"), [("ridge", "ridge scores"), pytest.param("lda", "logits", marks=pytest.mark.slow)]
)
def test_an_onnx_file_tells_its_stage_and_the_kind_of_its_scores(stage: str, kind: str, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="an optional extra")
    pytest.importorskip("onnxscript", reason="an optional extra")
    path = trained("mlp(hidden=[4])", stages=[stage]).export(tmp_path / "model.onnx", stage=stage)
    held = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert (held["stage"], held["scores"]) == (stage, kind)
    assert "run" not in held  # it has no folder


@pytest.mark.slow
def test_a_hugging_face_classifier_becomes_an_onnx_file(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="an optional extra")
    onnxruntime = pytest.importorskip("onnxruntime", reason="an optional extra")
    pytest.importorskip("onnxscript", reason="an optional extra")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=16, num_labels=3, **sizes)
    net = transformers.BertForSequenceClassification(config)
    tokens = np.random.default_rng(0).integers(1, 50, (60, 8))
    x = {"input_ids": tokens, "attention_mask": (tokens > 5).astype(np.int64)}
    layout = {"input_ids": "tokens", "attention_mask": "tokens"}
    data = fh.Federation.from_arrays(x, np.arange(60) % 3, clients=2, test=0.2, layout=layout)
    found = fh.run(data, fh.split(net), rounds=1, lr=0.1, batch_size=16, executor="loop", device="cpu")
    assert isinstance(found.module(), transformers.BertForSequenceClassification)
    session = onnxruntime.InferenceSession(str(found.export(tmp_path / "model.onnx")))
    (scores,) = session.run(None, x)
    np.testing.assert_allclose(scores, found.scores(x), atol=1e-5)


def clinic(rows: int = 40, seed: int = 0) -> pd.DataFrame:
    """A table of numbers and words with gaps."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {"age": rng.normal(60, 9, rows), "sex": rng.choice(["f", "m"], rows), "dose": rng.normal(size=rows)}
    )
    table.loc[rng.random(rows) < 0.2, "age"] = np.nan
    table.loc[rng.random(rows) < 0.1, "sex"] = None
    return table.assign(label=rng.choice(["ill", "well"], rows))


def test_a_table_is_predicted_and_exported_with_its_columns_and_gaps(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="an optional extra")
    pytest.importorskip("onnxscript", reason="an optional extra")
    made = fh.Federation.from_clients([clinic(), clinic(seed=1)], missing="mean", normalize="standard")
    fh.run(made, "mlp(hidden=[4])", rounds=1, executor="loop", device="cpu", out=tmp_path / "run")
    loaded, rows = fh.load(tmp_path / "run"), clinic(seed=2)
    session = onnxruntime.InferenceSession(str(loaded.export(tmp_path / "model.onnx", normalize=True)))
    held = session.get_modelmeta().custom_metadata_map
    assert json.loads(held["columns"]) == ["age", "sex=f", "sex=m", "sex missing", "dose"]
    assert json.loads(held["classes"]) == ["ill", "well"]
    assert {key: held.get(key) for key in ("run", "fedhead", "stage", "scores")} == {
        "run": "run",
        "fedhead": fh.__version__,
        "stage": None,
        "scores": "logits",
    }
    assert made.columns is not None
    (scores,) = session.run(None, {"x": made.columns.encode(rows)})
    assert np.isnan(made.columns.encode(rows)).any()
    np.testing.assert_allclose(scores, loaded.scores(rows), atol=1e-5)
    assert loaded.predict(rows.drop(columns="label")).shape == (40,)
    made.save(tmp_path / "made.npz")
    assert fh.Federation.load(tmp_path / "made.npz").columns == made.columns
    with pytest.raises(BadInput, match="x has no column 'dose'"):
        loaded.predict(rows.drop(columns="dose"))
