"""`fedhead.oneshot`: heads from one message per client, beside the same heads on pooled features."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedhead as fh
from fedhead.api import oneshot as module
from fedhead.cli import call

BACKBONE = "mlp(hidden=[24])"
SPLIT: dict[str, Any] = {"partition": "dirichlet(0.1)", "clients": 4}


def test_every_head_has_its_numbers_and_equals_the_pooled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CCVR", functools.partial(fh.CCVR, samples=50, epochs=1))
    found = fh.oneshot("digits", BACKBONE, rounds=2, **SPLIT)
    rows = {row["head"]: row for row in found.rows}
    assert list(rows) == ["ncm", "ridge", "lda", "qda", "fedcof", "fedavg, 2 rounds", "fedavg, 2 rounds, ccvr"]
    for name in ("ncm", "ridge", "lda", "qda"):
        assert rows[name]["accuracy"] == rows[name]["pooled"]
    assert rows["ridge"]["accuracy"] > rows["fedavg, 2 rounds"]["accuracy"] > 5
    assert rows["ncm"]["bytes_per_client"] == 8 * 10 * 25 + 8  # counts, sums, the architecture's number
    assert rows["ridge"]["bytes_per_client"] == rows["ncm"]["bytes_per_client"] + 8 * 24 * 25 / 2
    assert 50 < rows["ridge"]["worst_client"] <= rows["ridge"]["accuracy"]  # both in per cent
    for row in rows.values():
        assert 0 <= row["worst_client"] <= 100
        assert 0 < row["f1"] <= 1
        assert row["seconds"] > 0
    found.plot(tmp_path / "heads.svg")
    assert "kB that a client sends" in (tmp_path / "heads.svg").read_text()
    assert "ridge" in str(found)
    assert isinstance(found.result.module(stage="fedcof")[-1], torch.nn.Linear)  # type: ignore[union-attr,index]  # a sequence of layers


def test_heads_that_cannot_be_computed_are_named_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    y = np.arange(40) % 3
    y[y == 2] = 1
    y[3] = 2  # a class of one sample has no covariance
    federation = fh.Federation.from_arrays(x, y, clients=2, test=(x, y))
    notes = {row["head"]: row["note"] for row in fh.oneshot(federation, "mlp(hidden=[])").rows}
    assert "one sample" in notes["qda"]
    assert notes["ridge"] is None
    with pytest.raises(fh.BadInput, match="one sample"):
        fh.oneshot(federation, "mlp(hidden=[])", ["qda"])
    monkeypatch.setattr(module, "LARGEST", 10)
    assert "left out: messages of" in fh.oneshot(federation, "mlp(hidden=[])").rows[3]["note"]


def test_what_a_backbone_wants_is_done_to_the_images() -> None:
    @fh.model("tests-wants", preprocessing=fh.Preprocessing(12, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    def wants(shape: tuple[int, ...]) -> fh.FeatureExtractor:
        """Average each channel."""
        assert tuple(shape[1:]) == (12, 12)
        return fh.FeatureExtractor(torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()), shape[0])

    x = torch.randint(0, 256, (30, 3, 8, 8), dtype=torch.uint8)
    federation = fh.Federation.from_arrays(x, torch.arange(30) % 2, clients=2, layout="nchw", test=0.2)
    found = fh.oneshot(federation, "tests-wants", ["ncm"])
    transform = fh.Transform((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), resize=12)
    torch.testing.assert_close(found.features.train.x, transform(federation.train.x).mean((2, 3)))  # type: ignore[arg-type]  # one tensor
    gray = fh.oneshot("digits", "tests-wants", ["ncm"], **SPLIT)
    assert gray.features.input_shape == (1,)


@pytest.mark.parametrize(("resize", "warned"), [(64, False), (65, True)])
def test_large_images_on_a_cpu_are_warned_of(caplog: pytest.LogCaptureFixture, resize: int, warned: bool) -> None:
    x = torch.randint(0, 256, (12, 1, 4, 4), dtype=torch.uint8)
    federation = fh.Federation.from_arrays(x, torch.arange(12) % 2, clients=2, layout="nchw", test=0.5)
    fh.oneshot(federation, "mlp(hidden=[2])", ["ncm"], resize=resize, device="cpu")
    assert ("take long on a CPU: --resize 64 is faster" in caplog.text) is warned


def test_missing_values_are_filled_by_the_means_of_training_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 2, (60, 4)).astype(np.float32), np.arange(60) % 2
    x[::7, 1] = np.nan
    np.savez(tmp_path / "table.npz", x=x, y=y, site=np.arange(60) % 3)
    command = ["oneshot", str(tmp_path / "table.npz"), "--backbone", "mlp(hidden=[])", "--heads", "ridge", "--json"]
    assert call(command) == 2
    assert "with fedhead oneshot --missing mean" in capsys.readouterr().err
    assert call([*command, "--missing", "mean", "--normalize", "standard", "--quiet"]) == 0
    assert "ridge" in capsys.readouterr().out
    settings: dict[str, Any] = {"missing": "mean", "normalize": "standard"}
    found = fh.oneshot(tmp_path / "table.npz", "mlp(hidden=[])", ["ridge"], **settings).features
    same = fh.Federation.load(tmp_path / "table.npz", test=0.2, **settings)
    assert found.input_shape == (5,)
    torch.testing.assert_close(found.train.x, same.transform(same.train.x))
    with pytest.raises(fh.BadInput, match="missing would have no effect"):
        fh.oneshot(same, "mlp(hidden=[])", missing="mean")
    with pytest.raises(fh.BadInput, match="missing: this is for files and folders"):
        fh.oneshot("digits", "mlp(hidden=[])", missing="mean")


def test_bad_input_is_refused_in_one_line() -> None:
    with pytest.raises(fh.BadInput, match="head in closed form 'ccvr'"):
        fh.oneshot("digits", BACKBONE, ["ccvr"])
    with pytest.raises(fh.BadInput, match="'reisnet'"):
        fh.oneshot("digits", "reisnet")
    table = fh.Federation.from_arrays(torch.randn(20, 4), torch.arange(20) % 2, clients=2)
    with pytest.raises(fh.BadInput, match="resize: 12 is for images"):
        fh.oneshot(table, BACKBONE, resize=12)
    with pytest.raises(fh.BadInput, match=r"takes images, the samples have shape \(4,\)"):
        fh.oneshot(table, "efficientnet_lite0")
    with pytest.raises(fh.BadInput, match=r"'mlp\(hidden=\[512\]\)' --normalize standard for tables, .* wordllama"):
        fh.oneshot(table)
    with pytest.raises(fh.BadInput, match="heads: ncm is given twice"):
        fh.oneshot(table, BACKBONE, ["ncm", "ridge", "ncm"])
    with pytest.raises(fh.BadInput, match="the federation has its clients"):
        fh.oneshot(table, BACKBONE, clients=3)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 6, 6), dtype=np.uint8)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(40) % 2, site=np.arange(40) // 20)
    words = ["oneshot", str(tmp_path / "own.npz"), "--backbone", BACKBONE, "--heads", "ncm, ridge", "--quiet"]
    assert call([*words, "--plot", str(tmp_path / "p.png")]) == 0
    shown = capsys.readouterr().out
    assert "ridge" in shown
    assert "2 clients (natural)" in shown
    assert (tmp_path / "p.png").exists()
    assert call([*words, "--json"]) == 0
    assert [row["head"] for row in json.loads(capsys.readouterr().out)["heads"]] == ["ncm", "ridge"]
    assert call(["oneshot", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_heads_with_privacy_and_secure_sums(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    words = ["digits", "--backbone", "mlp(hidden=[])", "--clients", "6", "--heads", "ncm", "--json", "--quiet"]
    accuracy = {}
    for options in ([], ["--secure-sum"], ["--dp", "1"], ["--secure-sum", "--dp", "epsilon=1, delta=1e-5"]):
        assert call(["oneshot", *words, *options]) == 0
        (row,) = json.loads(capsys.readouterr().out)["heads"]
        accuracy[" ".join(options)] = row["accuracy"]
        assert (row["privacy"] is not None) == ("--dp" in options)
        assert row["privacy"] is None or row["privacy"]["epsilon"] == pytest.approx(1)
    plain, summed, alone, shared = accuracy.values()
    assert plain == summed
    assert alone < shared <= plain + 3  # shares of the noise add up to that of one client
    for options, text in ((["--dp", "0"], "epsilon: 0 is out of range"), (["--dp", "1, delta=0.01"], "below 1/n")):
        assert call(["oneshot", *words, *options]) == 2
        assert text in capsys.readouterr().err
    words = ["digits", "--backbone", "mlp(hidden=[])", "--clients", "6", "--heads", "ncm,lda", "--quiet", "--dp", "2"]
    assert call(["oneshot", *words]) == 0
    shown = capsys.readouterr().out
    assert "pooled, no noise %" in shown
    assert "privacy of stage lda: ε = 2, δ = 1e-05 per sample" in shown
    assert "each head spends the whole ε" in shown
    with pytest.raises(fh.BadInput, match="FedAvg is compared without protection"):
        fh.oneshot("digits", BACKBONE, ["ncm"], rounds=1, uploads=["secure_sum"])
