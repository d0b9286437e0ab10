"""The files that a table's results are written to."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def named(folder: Path) -> dict[str, Any]:
    return {cell["cell"]: cell for cell in json.loads((folder / "table.json").read_text())["cells"]}


def test_cells_that_are_not_picked_stay_in_the_file(
    tmp_path: Path, load_tiny: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "--out", str(tmp_path), "--cells"]
    assert call([*words, "hard fedavg"]) == 0
    before = named(tmp_path)
    assert call([*words, "mild fedavg before", "--json"]) == 0
    shown = capsys.readouterr()
    assert [cell["cell"] for cell in json.loads(shown.out[shown.out.index("{") :])["cells"]] == ["mild fedavg before"]
    after = named(tmp_path)
    assert list(after) == ["mild fedavg before", "hard fedavg before", "hard fedavg ccvr"], "in the table's order"
    assert all(after[name] == cell for name, cell in before.items())
    assert json.loads((tmp_path / "table.json").read_text())["seeds"] == [0, 4]
    with (tmp_path / "table.csv").open() as file:
        assert [row["data"] for row in csv.DictReader(file)] == ["mild", "hard", "hard"]


def test_cells_that_the_settings_do_not_fit_are_no_matter(tmp_path: Path, load_tiny: Callable[..., None]) -> None:
    words = [*WORDS, "--out", str(tmp_path), "method.mu=0.25", "--cells"]
    for cells in ("mild fedprox before", "hard fedprox before"):  # FedAvg has no mu
        assert call([*words, cells]) == 0
    found = json.loads((tmp_path / "table-method.mu=0.25.json").read_text())
    assert [cell["cell"] for cell in found["cells"]] == ["mild fedprox before", "hard fedprox before"]


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
