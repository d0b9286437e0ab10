"""Sweeps and studies never mix results of two versions of the user's own code without saying so."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput

MINE = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Mine(fh.Method):
    mu: float = 0.1

    def loss(self, w, batch, client):
        return {loss}
"""
OLD = MINE.format(loss="super().loss(w, batch, client)")
NEW = MINE.format(loss="2 * super().loss(w, batch, client)")
BROKEN = MINE.format(loss="client.received['nothing']")
TINY = ["subset=100", "clients=2", "rounds=1", "local_epochs=1", "partition=iid", "model=mlp(hidden=[4])"]
SWEEP = ["sweep", "digits", "method=mine.py:Mine", "lr=[0.1,0.2]", *TINY, "--executor", "loop", "--out", "grid"]

TUNE = ["tune", "digits", "method=mine.py:Mine", "lr=log(0.1, 0.2)", *TINY, "--out", "study"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OLD)


def test_a_sweep_does_not_add_runs_to_those_of_older_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(SWEEP) == 0
    Path("mine.py").write_text(NEW)
    capfd.readouterr()
    assert call([*SWEEP, "--seeds", "2"]) == 2
    said = capfd.readouterr().err
    assert "mine.py (method mine.py:Mine) changed since grid was begun, and it has 2 results" in said
    assert "put the old code back, select another folder with --out, or add --allow-changed-code" in said
    assert not Path("grid/runs/lr=0.1/seed-1").exists()
    assert call([*SWEEP, "--seeds", "2", "--allow-changed-code"]) == 0
    assert "it keeps 2 results of the old code, the others are those of the new one" in capfd.readouterr().err
    for command in (["compare", "grid"], ["report", "grid"]):
        assert call(command) == 0
        said = capfd.readouterr()
        versions = "the runs are of 2 versions of the method mine.py:Mine (one of each: grid/runs/lr=0.1/seed-0, grid"
        assert versions in said.out + said.err


@pytest.mark.slow
def test_a_finished_sweep_says_that_its_code_is_older(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(SWEEP) == 0
    Path("mine.py").write_text(NEW)
    capfd.readouterr()
    assert call(SWEEP) == 0
    assert "its results are those of the old code; select another folder with --out" in capfd.readouterr().err


@pytest.mark.slow
def test_a_study_does_not_add_trials_to_those_of_older_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert call([*TUNE, "--trials", "2"]) == 0
    Path("mine.py").write_text(NEW)
    capfd.readouterr()
    assert call([*TUNE, "--trials", "2"]) == 0
    assert "its results are those of the old code; select another folder with --out" in capfd.readouterr().err
    for words in (["--trials", "3"], ["--trials", "2", "--final"]):
        assert call([*TUNE, *words]) == 2
        said = capfd.readouterr().err
        assert "mine.py (method mine.py:Mine) changed since study was begun, and it has 2 results" in said
    assert len(Path("study/trials.csv").read_text().splitlines()) == 3
    assert call([*TUNE, "--trials", "3", "--allow-changed-code"]) == 0
    assert "it keeps 2 results of the old code, the others are those of the new one" in capfd.readouterr().err


@pytest.mark.slow
def test_python_can_allow_what_the_error_of_a_study_names(caplog: pytest.LogCaptureFixture) -> None:
    words = ("digits", "method=mine.py:Mine", "lr=log(0.1, 0.2)", *TINY)
    fh.tune(*words, out="study", trials=1)
    Path("mine.py").write_text(NEW)
    with pytest.raises(BadInput, match=r"it has 1 result of the old code, .*allow_changed_code=True"):
        fh.tune(*words, out="study", trials=2)
    found = fh.tune(*words, out="study", trials=2, allow_changed_code=True)
    assert len(found.trials) == 2
    assert "it keeps 1 result of the old code," in caplog.text


@pytest.mark.slow
def test_methods_that_a_study_chooses_among_count(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "digits", "method=choice(fedavg, mine.py:Mine)", *TINY, "--out", "study"]
    assert call([*words, "--trials", "2"]) == 0
    Path("mine.py").write_text(NEW)
    assert call([*words, "--trials", "3"]) == 2
    assert "mine.py (method mine.py:Mine) changed" in capfd.readouterr().err


@pytest.mark.slow
def test_a_study_whose_trials_failed_goes_on_with_code_that_was_fixed() -> None:
    Path("mine.py").write_text(BROKEN)
    assert call([*TUNE, "--trials", "2"]) == 1
    Path("mine.py").write_text(OLD)
    assert call([*TUNE, "--trials", "2"]) == 0
    assert call([*TUNE, "--trials", "3"]) == 0


@pytest.mark.slow
def test_a_sweep_whose_runs_failed_goes_on_with_code_that_was_fixed() -> None:
    Path("mine.py").write_text(BROKEN)
    assert call(SWEEP) == 1
    Path("mine.py").write_text(OLD)
    assert call(SWEEP) == 0
