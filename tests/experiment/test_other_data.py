"""Tests of a table on other data than the paper's: there is no difference to the published results, and why is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tiny_table import CPU, tiny

from fedhead.experiment import tables
from fedhead.experiment.reproduce import reproduce
from fedhead.experiment.table_result import CellResult


def _first(tmp_path: Path, pick: str, **overrides: object) -> tuple[CellResult, str]:
    made = reproduce(tiny(), tmp_path, pick=[pick], seeds=1, overrides=overrides, settings=CPU)
    return made.cells[0], made.note()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two classes of the digits in a file."""
    x, y = load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("data") / "two.npz"
    np.savez(path, x=x[y < 2], y=y[y < 2])
    return str(path)


def test_results_on_other_data_have_no_difference(tmp_path: Path, data: str) -> None:
    cell, note = _first(tmp_path, "mild fedavg before", dataset=data, test=0.2)
    assert cell.mean is not None
    assert cell.published is not None
    assert (cell.difference, cell.comparable) == (None, False)
    assert "; on other data than the paper's, results are NOT comparable with the published ones" in note
    _first(tmp_path, "mild fedprox before", dataset=data, test=0.2)
    kept = json.loads(next(tmp_path.glob("table-dataset*.json")).read_text())["cells"]
    assert [(one["mean"] is None, one["difference"]) for one in kept] == [(False, None)] * 2  # also of the cell before


def test_other_settings_and_the_papers_own_data_are_compared(tmp_path: Path) -> None:
    cell, note = _first(tmp_path, "mild fedavg before", dataset="digits", lr=0.1)
    assert cell.mean is not None
    assert cell.published is not None
    assert cell.difference == pytest.approx(cell.mean - cell.published)
    assert "NOT comparable" not in note


def test_a_variant_with_other_data_is_a_reading_of_the_paper() -> None:
    table = tables.load("fedclassavg/table3")
    name = next(name for name, variant in table.variants().items() if "dataset" in variant.get("set", {}))
    varied = table.varied(table.cells(), [name])
    assert not any(cell.other_task for cell in varied)
    assert all(cell.override({"dataset": "digits"}).other_task for cell in varied)
