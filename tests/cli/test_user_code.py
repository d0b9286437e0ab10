"""Errors in the user's own code: one line with its place, and nothing that must be cleared away afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedhead.cli import call

CODE = """
import fedhead as fh
from dataclasses import dataclass

@dataclass(frozen=True)
class Bad(fh.Method):
    def aggregate(self, server, replies, task):
        return {}["nothing"]

def fails(runs, options):
    return fh.AnalysisReport({"value": 1 / 0})

def works(runs, options):
    return fh.AnalysisReport({"value": len(runs)})
"""


def test_an_error_in_a_hook_is_one_line_and_the_fixed_code_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(CODE)
    command = ["run", "digits", "method=bad.py:Bad", "rounds=1", "subset=100", "clients=2", "--out", "run", "--quiet"]
    assert call([*command, "--executor", "loop"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: Bad.aggregate (bad.py, line 8): KeyError: 'nothing'; set FEDHEAD_TRACEBACK=1")
    assert said.count("\n") == 1
    (tmp_path / "bad.py").write_text(CODE.replace('{}["nothing"]', "server"))
    assert call([*command, "--resume"]) == 0  # no round was trained with the other code
    capsys.readouterr()
    assert call(["analyse", "bad.py:fails", "run"]) == 1
    assert capsys.readouterr().err.startswith("error: fails (bad.py, line 11): ZeroDivisionError: division by zero")
    assert call(["analyse", "bad.py:works", "run"]) == 0
    assert capsys.readouterr().out == f"{'value':<30}1\nwritten to run/analysis/works.json\n"


def test_the_whole_traceback_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDHEAD_TRACEBACK", "1")
    (tmp_path / "bad.py").write_text(CODE)
    words = ["rounds=1", "subset=100", "clients=2", "--executor", "loop", "--quiet", "--out", "run"]
    with pytest.raises(KeyError, match="nothing"):
        call(["run", "digits", "method=bad.py:Bad", *words])
