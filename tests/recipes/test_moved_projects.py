"""Runs find the user's own code again after the project or the run folder was moved."""

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


@pytest.mark.slow
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


@pytest.mark.parametrize("begin", [run, sweep])
def test_the_run_folder_alone_is_moved(
    project: Path, begin: Callable[[Path], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = begin(project)
    monkeypatch.chdir("/")
    shutil.move(project / one, tmp_path / "alone")
    assert fh.load(tmp_path / "alone").module() is not None
    shutil.move(project / "code", project / "elsewhere")
    with pytest.raises(BadInput, match=r"needs the method part/mine\.py:Mine, which was in .*old/code/part/mine\.py: "):
        fh.load(tmp_path / "alone").module()
    shutil.copytree(project / "elsewhere" / "part", tmp_path / "alone" / "part")  # as the error advises
    assert fh.load(tmp_path / "alone").module() is not None


def test_the_folders_of_the_runs_recipe_come_first(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = run(project)
    new = moved(project, monkeypatch)
    shutil.move(new / "code", new / "elsewhere")
    (new / "elsewhere" / "part" / "mine.py").write_text(OTHER)  # the user says that this is the file
    file = new / one / "config.yaml"
    file.write_text(file.read_text().replace("folders: [", "folders: [../elsewhere, "))
    assert fh.load(new / one).module() is not None
    assert "changed since" in caplog.text
    assert load(file).folders[:2] == (file.parent, file.parent / "../elsewhere")
