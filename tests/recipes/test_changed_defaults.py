"""A default that changes in the code makes other runs and stages: those of a folder are not taken for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from changed_default import with_default
from tiny_table import CPU, rows, tiny

from fedhead.methods.fedprox import FedProx
from fedhead.papers.tables.reproduce import reproduce
from fedhead.papers.tables.run_cells import folder
from fedhead.stages.ccvr import CCVR


def values(folder: Path) -> list[str]:
    return [row["value"] for row in rows(folder)]


@pytest.mark.slow
@pytest.mark.parametrize(("made", "name", "new", "trainings"), [(CCVR, "lr", 0.9, 1), (FedProx, "mu", 9.0, 2)])
def test_what_was_trained_with_another_default_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: type[Any], name: str, new: float, trainings: int
) -> None:
    table = tiny(**{"rounds: 2": "rounds: 3, lr: 0.3", "subset: 120": "subset: 600", "samples: 5}": "samples: 50}"})

    def measure(out: str, results: str) -> list[str]:
        reproduce(table, tmp_path / out, pick=["mild fedprox"], seeds=1, results=tmp_path / results, compute=CPU)
        return values(tmp_path / results)

    before = measure("out", "before")
    kept = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*ccvr*/*/result.json")}
    assert measure("out", "again") == before
    assert len(list((tmp_path / "out").rglob("*ccvr*/*/result.json"))) == len(kept) == 1  # taken as it was
    with_default(monkeypatch, made, name, new)
    after = measure("out", "after")
    assert after == measure("fresh", "fresh")
    assert after != before
    assert len(list((tmp_path / "out").glob("runs/*/seed-0"))) == trainings + 2
    assert len(list((tmp_path / "out").rglob("*ccvr*/*/result.json"))) == 2
    assert {path: path.read_bytes() for path in kept} == kept


def test_own_code_that_changed_is_trained_elsewhere(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    lines = ["from dataclasses import dataclass", "import fedhead as fh", "@dataclass(frozen=True)"]
    mine.write_text("\n".join([*lines, "class Mine(fh.Method):", '    """FedAvg."""']))
    (cell,) = tiny().cells(pick=["mild fedavg before"])
    recipe = cell.override({"method": f"{mine}:Mine"}).recipe(0)
    before = folder(tmp_path, recipe)
    assert folder(tmp_path, recipe) == before
    mine.write_text(mine.read_text() + "\n    # changed\n")
    assert folder(tmp_path, recipe) != before
