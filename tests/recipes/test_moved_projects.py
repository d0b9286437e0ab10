"""Runs find the user's own code again after the project was moved, and never take another file for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.recipes.recipe import load

MINE = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Mine(fh.FedAvg):
    mu: float = 0.1
"""
OTHER = MINE.replace("0.1", "0.2")
TINY = ["subset=100", "clients=2", "rounds=1", "model=mlp(hidden=[4])", "partition=iid", "--executor", "loop"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with its own method, in a folder of code."""
    (tmp_path / "old" / "code" / "part").mkdir(parents=True)
    (tmp_path / "old" / "code" / "part" / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path / "old" / "code")
    return tmp_path / "old"


def run(project: Path) -> Path:
    assert call(["run", "digits", "method=part/mine.py:Mine", *TINY, "--out", str(project / "run")]) == 0
    return Path("run")


def sweep(project: Path) -> Path:
    axis = ["method=part/mine.py:Mine", "lr=[0.1,0.2]"]
    assert call(["sweep", "digits", *axis, *TINY, "--out", str(project / "sw")]) == 0
    return Path("sw/runs/lr=0.1/seed-0")


def moved(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir("/")
    return project.rename(project.with_name("new"))


@pytest.mark.parametrize("begin", [run, sweep])
def test_a_project_is_moved_as_a_whole(
    project: Path,
    begin: Callable[[Path], Path],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = begin(project)
    new = moved(project, monkeypatch)
    assert call(["analyse", "norms", str(new / one), "--json"]) == 0, capfd.readouterr().err
    assert "changed since" not in caplog.text
    again = ["run", str(new / one / "config.yaml"), "rounds=2", "--out", str(new / one), "--resume"]
    assert call(again) == 0  # which records the new places
    last = new.rename(new.with_name("last"))
    assert fh.load(last / one).module() is not None


def test_another_file_in_the_new_place_is_not_taken(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sweep(project)
    new = moved(project, monkeypatch)
    (new / "code" / "part" / "mine.py").write_text(OTHER)
    with pytest.raises(
        BadInput, match=r"the folder .*old/code, in which part/mine\.py is looked for, is not there: .*"
    ):
        fh.load(new / one).module()


def test_the_run_folder_alone_is_moved_beside_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sweep(project)
    new = moved(project, monkeypatch)
    shutil.move(new / "code", new / "elsewhere")
    with pytest.raises(BadInput, match=r"old/code, in which part/mine\.py is looked for, is not there"):
        fh.load(new / one).module()
    shutil.copytree(new / "elsewhere" / "part", new / "sw" / "part")  # as the error advises
    assert fh.load(new / one).module() is not None


def test_the_folders_of_the_sweeps_file_are_looked_into(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = sweep(project)
    new = moved(project, monkeypatch)
    shutil.move(new / "code", new / "elsewhere")
    file = new / "sw" / "sweep.yaml"
    file.write_text(file.read_text().replace("folders: [../code]", "folders: [../elsewhere]"))
    assert fh.load(new / one).module() is not None
    file.write_text("folders: [")  # damaged: it is not the run's own
    with pytest.raises(BadInput, match=r"old/code, in which part/mine\.py is looked for, is not there"):
        fh.load(new / one).module()


def test_the_folders_of_the_runs_recipe_come_first(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = run(project)
    new = moved(project, monkeypatch)
    shutil.move(new / "code", new / "elsewhere")
    (new / "elsewhere" / "part" / "mine.py").write_text(OTHER)  # the user says that this is the file
    file = new / one / "config.yaml"
    file.write_text("folders: [../elsewhere]\n" + file.read_text())
    assert fh.load(new / one).module() is not None
    assert "changed since" in caplog.text
    assert load(file).folders[:2] == (file.parent, file.parent / "../elsewhere")
