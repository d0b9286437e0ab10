"""Tests of components from files that are given in Python: another process finds them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fedhead as fh
from fedhead.core.components.loading import load_object
from fedhead.runs.run_folder import RunFolder

OWN = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Mine(fh.Method):
    'FedAvg with a factor.'
    factor: float = 1.0
    def loss(self, w, batch, client):
        return super().loss(w, batch, client) * self.factor

@dataclass(frozen=True)
class Float16Upload(fh.Upload):
    'Changes nothing.'
    def encode(self, send, client):
        return send
"""
AGAIN = """
import sys
import fedhead as fh
federation = fh.Federation.load("digits", "iid", clients=2, subset=60)
result = fh.load("../run", federation=federation)
print(result.record.recipe.method, result.calibrate("ridge").accuracy > 0)
print(len(fh.run(federation, "mlp", "../code/mine.py:Mine(factor=2)", rounds=2, out="../run", resume=True).rows))
"""


def small() -> fh.Federation:
    return fh.Federation.load("digits", "iid", clients=2, subset=60)


@pytest.mark.slow
def test_a_file_is_recorded_by_its_name_and_a_new_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("code", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "code" / "mine.py").write_text(OWN)
    fh.run(small(), "mlp", "code/mine.py:Mine(factor=2)", rounds=1, out="run", executor="loop")
    folder = RunFolder.open(Path("run"))
    assert (folder.recipe.method, folder.recipe.method_parameters) == ("mine.py:Mine", {"factor": 2.0})
    assert "method" not in folder.environment()["objects"]
    done = subprocess.run(
        [sys.executable, "-c", AGAIN],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["mine.py:Mine", "True", "2"], done.stderr


def test_files_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(OWN)
    upload, _ = load_object("b/mine.py:Float16Upload", "upload")
    fh.run(small(), "mlp", "a/mine.py:Mine", rounds=1, uploads=[upload()], out="run", executor="loop")
    recipe = RunFolder.open(Path("run")).recipe
    assert (recipe.method, recipe.uploads) == ("mine.py:Mine", (f"{tmp_path}/b/mine.py:Float16Upload",))
