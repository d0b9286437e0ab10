"""`fedhead new`: what it writes passes its own test at once; what it can't write it refuses in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedhead.cli import call


@pytest.mark.slow
def test_what_is_written_passes_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in (("method", "FedMine"), ("stage", "my_stage"), ("model", "MyNet")):
        assert call(["new", kind, name, "--out", str(tmp_path / "plugins")]) == 0
    out = capsys.readouterr().out
    assert f"method={(tmp_path / 'plugins' / 'fedmine.py').as_posix()}:FedMine" in out
    assert "my_stage.py:MyStage]" in out
    assert "mynet.py:mynet" in out
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "plugins"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method", "not-a-name"], "the name 'not-a-name' can't be used: write a word of letters, digits and _"),
        (["method", "class"], "the name 'class' can't be used"),
        (["method", "Torch"], "the name 'Torch' is taken: Python has a module 'torch' already; choose another"),
        (["methd", "FedMine"], "unknown kind 'methd': did you mean 'method'?"),
    ],
)
def test_bad_words_are_refused_in_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["new", *words, "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {said}")
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_existing_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_fedmine.py").write_text("mine")
    assert call(["new", "method", "FedMine", "--out", str(tmp_path)]) == 2
    assert "test_fedmine.py exists already" in capsys.readouterr().err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("test_fedmine.py", "mine")]
