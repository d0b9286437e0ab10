"""Tests of a table with other data or settings than the paper's: no difference to the published results, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from tiny_table import CPU, tiny

from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.published import has_published_settings
from fedhead.papers.tables.reproduce import reproduce
from fedhead.papers.tables.table_result import CellResult


def _first(tmp_path: Path, pick: str, *variants: str, **overrides: object) -> tuple[CellResult, str]:
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    made = reproduce(tiny(), tmp_path, pick=[pick], seeds=1, variants=variants, overrides=changes, compute=CPU)
    return made.cells[0], made.note()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two classes of the digits in a file."""
    x, y = load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("data") / "two.npz"
    np.savez(path, x=x[y < 2], y=y[y < 2])
    return str(path)


SAID = "; results of settings that no variant has are NOT comparable with the published ones"


def test_results_on_other_data_have_no_difference(tmp_path: Path, data: str) -> None:
    cell, note = _first(tmp_path, "mild fedavg before", dataset=data, test=0.2)
    assert cell.mean is not None
    assert cell.published is not None
    assert (cell.difference, cell.comparable) == (None, False)
    assert SAID in note
    kept = json.loads(next(tmp_path.glob("table-dataset*.json")).read_text())["cells"]
    assert [(one["mean"] is None, one["difference"]) for one in kept] == [(False, None)]


@pytest.mark.parametrize(
    ("variants", "overrides", "compared"),
    [
        ([], {"dataset": "digits", "lr": 0.1}, False),
        ([], {"dataset": "digits"}, True),  # what the table has anyway
        (["strong"], {}, True),
        ([], {"method__mu": 0.5}, True),  # what the variant has
        (["strong"], {"lr": 0.1}, False),
        (["strong"], {"method__mu": 0.7}, False),
    ],
)
def test_only_settings_of_the_table_and_its_variants_are_compared(
    variants: Sequence[str], overrides: dict[str, object], compared: bool, tmp_path: Path
) -> None:
    cell, note = _first(tmp_path, "mild fedprox before", *variants, **overrides)
    assert cell.mean is not None
    assert cell.published is not None
    assert cell.difference == (pytest.approx(cell.mean - cell.published) if compared else None)
    assert (SAID in note) != compared


def test_a_variant_with_other_data_is_a_reading_of_the_paper() -> None:
    table = tables.load("fedclassavg/table3")
    (name,) = [name for name, variant in table.variants().items() if "dataset" in variant.get("set", {})]
    varied = table.varied(table.cells(), [name])
    assert all(has_published_settings(table, cell) for cell in varied)
    assert not any(has_published_settings(table, cell.override({"dataset": "digits"})) for cell in varied)
    by_hand = {"dataset": varied[0].keys["dataset"]}
    assert has_published_settings(table, table.cell(varied[0].choices).override(by_hand))
