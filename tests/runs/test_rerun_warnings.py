"""Tests of runs that are repeated from another's config.yaml: what has changed since is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedhead as fh
from fedhead.cli import call
from fedhead.studies.sweep.sweep_file import base_of

SMALL = ["rounds=1", "clients=2", "subset=60", "model.hidden=[4]", "--executor", "loop", "--quiet"]
OWN = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Mine(fh.Method):
    'FedAvg with another factor.'
    def loss(self, w, batch, client):
        return super().loss(w, batch, client) * 2
"""


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A run with its own code and relative first weights."""
    monkeypatch.chdir(tmp_path)
    assert call(["run", "digits", *SMALL, "--out", "source"]) == 0
    fh.load("source").export("first.safetensors")
    (tmp_path / "mine.py").write_text(OWN)
    assert call(["run", "digits", *SMALL, "weights=first.safetensors", "method=mine.py:Mine", "--out", "begun"]) == 0
    capsys.readouterr()
    return tmp_path / "begun"


def repeat(capsys: pytest.CaptureFixture[str], *words: str, out: str = "again") -> str:
    assert call(["run", "begun/config.yaml", *words, "--executor", "loop", "--quiet", "--out", out]) == 0
    return capsys.readouterr().err


def test_the_same_files_are_no_reason_to_warn(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "warning" not in repeat(capsys)


def change_weights() -> None:
    weights = load_file("first.safetensors")
    save_file({name: torch.zeros_like(t) for name, t in weights.items()}, "first.safetensors")


def test_changed_weights_are_said(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_weights()
    said = repeat(capsys)
    assert "warning: weights: first.safetensors changed since begun was begun: training starts from other" in said
    assert "warning" not in repeat(capsys, "weights=source", out="meant"), "other weights that are asked for"


def test_changed_code_is_said(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(OWN.replace("* 2", "* 3"))
    assert "mine.py (method mine.py:Mine) changed since begun was begun: training is that of the new code" in repeat(
        capsys
    )
    assert "changed" not in repeat(capsys, "method=fedavg", out="meant")


@pytest.mark.slow
def test_what_python_gave_and_no_recipe_holds_is_said(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = fh.Federation.load("digits", "iid", clients=2)
    fh.run(federation, "mlp", rounds=1, out="python", executor="loop")
    assert call(["run", "python/config.yaml", "--quiet", "--executor", "loop", "--out", "again"]) == 0
    assert "warning: python was begun in Python with its own federation: here they are" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "begun/config.yaml", "lr=[0.1,0.2]"],
        ["sweep", "grid.yaml"],
        ["tune", "begun/config.yaml", "lr=log(0.1, 0.2)", "--trials", "1"],
    ],
)
def test_sweeps_and_searches_over_the_recipe_of_a_run_say_it_too(
    words: list[str], begun: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("grid.yaml").write_text("recipe: begun/config.yaml\naxes: {lr: [0.1, 0.2]}\n")
    assert call([*words, "--out", "same"]) == 0
    assert "warning" not in capsys.readouterr().err
    change_weights()
    Path("mine.py").write_text(OWN.replace("* 2", "* 3"))
    assert call([*words, "--out", "other"]) == 0
    said = capsys.readouterr().err
    assert said.count("weights: first.safetensors changed since") == 1
    assert said.count("mine.py (method mine.py:Mine) changed since") == 1
    assert call([*words, "weights=source", "method=fedavg", "--out", "meant"]) == 0
    assert "changed" not in capsys.readouterr().err, "what is asked for"


@pytest.mark.slow
def test_a_sweep_over_first_weights_says_which_changed(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change_weights()
    assert call(["sweep", "begun/config.yaml", "weights=[source,first.safetensors]", "--dry-run"]) == 0
    assert "weights: first.safetensors changed since" in capsys.readouterr().err
    assert call(["tune", "begun/config.yaml", "weights=choice(source)", "--trials", "1", "--out", "tuned"]) == 0
    assert "changed" not in capsys.readouterr().err


def test_a_sweep_is_over_the_recipe_beside_its_file_also_where_a_link_leads_to_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "base.yaml").write_text("dataset: digits\nrounds: 1\n")
    (tmp_path / "real" / "sweep.yaml").write_text("recipe: base.yaml\naxes:\n  lr: [0.1, 0.2]\n")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "real" / "sweep.yaml")
    assert Path(base_of(tmp_path / "link.yaml")).read_text().startswith("dataset: digits")
