"""Options of `fedhead reproduce`: what has no effect or is empty is refused, and what is added is named."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from fedhead.cli import call


@pytest.mark.parametrize("words", [["nosuch/table"], ["ccvr/table2", "lr=3"], ["--dry-run"], ["--json"]])
def test_a_summary_runs_nothing(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["reproduce", "--summary", "--results", str(tmp_path), *words]) == 2
    assert "--summary writes the page of all results and runs nothing: give" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["reproduce", "run", "sweep", "tune"])
@pytest.mark.parametrize("words", [["--out", ""], ["--out="], ["--data-dir", " "], ["--device", ""]])
def test_an_empty_value_is_refused_by_every_command(
    command: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    given = words[1] if len(words) > 1 else ""
    assert call([command, "ccvr/table2" if command == "reproduce" else "digits", *words]) == 2
    option = words[0].removesuffix("=")
    said = f"error: {option}: {given!r} is empty; give a value, or leave it out; see fedhead {command} --help"
    assert capsys.readouterr().err == " ".join(said.split()) + "\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--results", "--cells", "--variants", "--seeds"])
def test_an_empty_value_of_a_table_is_refused(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["reproduce", "ccvr/table2", "--scale", "small", option, "", "--dry-run"]) == 2
    assert f"{option}: '' is empty" in capsys.readouterr().err
    assert call(["reproduce", ""]) == 2
    assert "PAPER/TABLE: '' is empty; give a value, or leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "what"), [("--results", "results"), ("--out", "runs")])
def test_a_read_only_file_system_is_answered_with_the_option_that_selects_another(
    option: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, folder = tempfile.TemporaryFile, tmp_path / "read-only"

    def read_only(*args: Any, dir: Path, **kwargs: Any) -> Any:
        if dir == folder:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir / "tmptwxnwyeh"))
        return made(*args, dir=dir, **kwargs)

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    monkeypatch.chdir(tmp_path)
    table = ["reproduce", "ccvr/table1", "--scale", "small", "--cells", "clsprox", "rounds=1", "--device", "cpu"]
    assert call([*table, option, str(folder)]) == 3
    said = f"error: {folder} can't keep {what}: Read-only file system; select another folder with {option}\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("there", [True, False])
def test_a_sweep_on_a_read_only_file_system_is_answered_likewise(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "read-only"

    def read_only(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    if there:
        folder.mkdir()
        monkeypatch.setattr("fedhead.studies.sweep.sweep.atomic", read_only)
    else:
        monkeypatch.setattr(Path, "mkdir", read_only)
    assert (
        call(["sweep", "digits", "method=[fedavg,fedprox]", "rounds=1", "--device", "cpu", "--out", str(folder)]) == 3
    )
    said = f"error: {folder} can't be written to: Read-only file system; select another folder with --out\n"
    assert capsys.readouterr().err == said
