"""Heads in closed form beside a run: from statistics in Python and from files on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import nn

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput


@pytest.fixture
def model() -> fh.SplitModel:
    torch.manual_seed(0)
    return fh.split(nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10)), classifier="2")


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.as_tensor(x / 16).float(), torch.as_tensor(y)


@pytest.mark.parametrize(("stage", "kind"), [("ncm", "means"), ("ridge", "pooled"), ("lda", "pooled"), ("qda", "full")])
def test_a_model_gets_a_head_and_the_site_that_leaves_leaves_no_trace(
    model: fh.SplitModel, digits: tuple[torch.Tensor, torch.Tensor], stage: str, kind: str
) -> None:
    x, y = digits
    a, b, c = (fh.statistics_of(model, x[k::3], y[k::3], kind=kind) for k in range(3))  # type: ignore[arg-type]
    total = fh.statistics.remove(fh.statistics.add(fh.statistics.add(a, c), b), c)
    left, never = fh.calibrate(model, total, stage), fh.calibrate(model, [a, b], stage)
    for name, t in left.state_dict().items():
        torch.testing.assert_close(t, never.state_dict()[name], atol=1e-5, rtol=1e-5)
    accuracy = float((left(x).logits.argmax(1) == y).float().mean())
    assert accuracy > 0.8
    assert torch.equal(left(x).z, model(x).z)


def test_fedcof_needs_each_sites_statistics(model: fh.SplitModel, digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = digits
    sites = [fh.statistics_of(model, x[k::20], y[k::20], kind="means") for k in range(20)]
    made = fh.calibrate(model, sites, fh.FedCOF(gamma=0.1))
    assert float((made(x).logits.argmax(1) == y).float().mean()) > 0.8
    with pytest.raises(BadInput, match="fedcof needs the statistics of each site"):
        fh.calibrate(model, sites[0], "fedcof")


def test_what_does_not_fit_is_refused(model: fh.SplitModel, digits: tuple[torch.Tensor, torch.Tensor]) -> None:
    known = fh.statistics_of(model, *digits, kind="pooled")
    with pytest.raises(BadInput, match="of kind pooled, and this needs full or diagonal"):
        fh.calibrate(model, known, "ccvr")
    with pytest.raises(BadInput, match="unknown parameter of stage ridge 'alhpa'"):
        fh.calibrate(model, known, "ridge(alhpa=1.0)")
    with pytest.raises(BadInput, match="alpha: -1 is out of range"):
        fh.calibrate(model, known, "ridge(alpha=-1)")
    with pytest.raises(BadInput, match="finetune computes no classifier from statistics"):
        fh.calibrate(model, known, "finetune")
    other = fh.split(nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10)), classifier="2")
    with pytest.raises(BadInput, match="statistics of another model: its weights differ"):
        fh.calibrate(other, known, "ridge")


@pytest.mark.slow
def test_sites_join_and_leave_on_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: fh.SplitModel,
    digits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = digits
    for k in range(3):
        fh.save_statistics(f"{k}.st", fh.statistics_of(model, x[k::3], y[k::3], kind="pooled"))
    torch.save(model.state_dict(), "net.pt")
    assert call(["statistics", "merge", "0.st", "1.st", "2.st", "--out", "all.st"]) == 0, capsys.readouterr().err
    assert "1797 samples of 3 sites -> all.st" in capsys.readouterr().out
    assert call(["statistics", "subtract", "all.st", "1.st", "--out", "rest.st"]) == 0, capsys.readouterr().err
    assert "1198 samples of 2 sites -> rest.st" in capsys.readouterr().out
    assert call(["statistics", "merge", "0.st", "2.st", "--out", "never.st"]) == 0
    ridge = ["--stage", "ridge(alpha=0.5)", "--classifier", "classifier"]
    for name in ("rest", "never"):
        words = ["calibrate", "net.pt", "--statistics", f"{name}.st", *ridge, "--out", f"{name}.safetensors"]
        assert call(words) == 0, capsys.readouterr().err
    found, expected = load_file("rest.safetensors"), load_file("never.safetensors")
    torch.testing.assert_close(found["classifier.weight"], expected["classifier.weight"], atol=1e-6, rtol=1e-6)
    capsys.readouterr()
    for words, said in (
        (
            ["statistics", "merge", "all.st", "1.st", "--out", "x.st"],
            "1.st: the statistics [0-9a-f]+ are in both: nobody is added twice",
        ),
        (["statistics", "subtract", "rest.st", "1.st", "--out", "x.st"], r"1\.st: the .* are not in the total"),
        (["statistics", "subtract", "0.st", "all.st", "--out", "x.st"], r"all\.st: the .* are not in the total"),
        (
            ["calibrate", "net.pt", "--statistics", "all.st", *ridge[-2:], "--stage", "qda", "--out", "x.st"],
            "this needs full",
        ),
    ):
        assert call(words) == 2
        error = capsys.readouterr().err
        assert re.search(said, error), error
        assert error.count("\n") == 1
    assert not Path("x.st").exists()


def test_a_built_in_model_with_parameters_on_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    digits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = digits
    torch.save(fh.build("mlp", tuple(x.shape[1:]), 10, hidden=[12]).state_dict(), "net.pt")
    np.savez("site.npz", x=x.numpy(), y=y.numpy(), layout="features")
    words = ["statistics", "collect", "net.pt", "site.npz", "--kind", "means", "--out", "site.st", "--model"]
    assert call([*words, "mlp(hidden=[12])"]) == 0, capsys.readouterr().err
    assert fh.load_statistics("site.st").features == 12
    assert call([*words, "mpl(hidden=[12])"]) == 2
    assert "name the weights' architecture" in capsys.readouterr().err
