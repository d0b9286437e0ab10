"""The files that a table's results are written to."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_table import tiny

from fedhead.cli import call

WORDS = ["reproduce", "paper/tiny", "--seeds", "1", "--device", "cpu", "--executor", "loop"]


@pytest.fixture
def load_tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the command find the tiny table; call it to change the table."""

    def load(**changes: str) -> None:
        monkeypatch.setattr("fedhead.papers.tables.paper_tables.load", lambda name: tiny(**changes))

    load()
    return load


def test_the_file_has_the_picked_cells(
    tmp_path: Path, load_tiny: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([*WORDS, "--out", str(tmp_path), "--cells", "hard fedavg", "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown[shown.index("{") :]) == json.loads((tmp_path / "table.json").read_text())
    with (tmp_path / "table.csv").open() as file:
        assert [(row["data"], row["stage"]) for row in csv.DictReader(file)] == [("hard", "before"), ("hard", "ccvr")]


@pytest.mark.slow
def test_tables_of_variants_and_overrides_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedhead.papers.tables.paper_tables.load", lambda name: tiny())
    words = ["reproduce", "paper/tiny", "--cells", "mild fedprox", "--seeds", "1", "--out", str(tmp_path)]
    words += ["--device", "cpu", "--executor", "loop"]
    assert call(words) == 0
    before = {name: (tmp_path / name).read_text() for name in ("table.csv", "table.json")}
    capsys.readouterr()
    for more, name in (
        (["--variants", "strong"], "table-strong"),
        (["method.mu=0.25"], "table-method.mu=0.25"),
        (["--variants", "tukey,both", "lr=0.1"], "table-tukey+both+lr=0.1"),
        (["model.hidden=[4, 4]"], "table-model.hidden=-4-4-07868a92"),
    ):
        assert call([*words, *more]) == 0
        assert capsys.readouterr().out.endswith(f"written to {tmp_path}/{name}.csv and .json\n")
        with (tmp_path / f"{name}.csv").open() as file:
            assert all(row["overrides"] for row in csv.DictReader(file))
    assert call([*words, "--variants", "strong", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["overrides"] == ["method.mu=0.5"]
    assert {name: (tmp_path / name).read_text() for name in before} == before
