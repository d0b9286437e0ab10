"""Labels of tables' cells: the data that they were run with, and the lines of progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_table import CPU, tiny

from fedhead.data.sources.datasets import DATASETS
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.reproduce import reproduce
from fedhead.papers.tables.results import digest
from fedhead.recipes.recipe import Recipe, assignment


@pytest.mark.parametrize("name", tables.names())
def test_small_data_is_never_called_by_the_papers(name: str) -> None:
    for cell in tables.load(name).cells("small"):
        named = [label.split("-")[0] for label in cell.labels.values() if label.split("-")[0] in DATASETS]
        assert set(named) <= {cell.keys["dataset"]}, cell.name


def test_lines_of_progress_name_the_cells(tmp_path: Path) -> None:
    said: list[str] = []
    table = tiny(**{"fedprox: {set: {method: fedprox}": "fedprox: {set: {lr: 0.2}"})
    reproduce(table, tmp_path, pick=["mild"], seeds=1, compute=CPU, log=said.append)
    assert said == [
        "[1-2/4] mild fedavg before, seed 0; mild fedavg ccvr, seed 0",
        "[3-4/4] mild fedprox before, seed 0; mild fedprox ccvr, seed 0",
    ]


@pytest.mark.parametrize("comma", [",", ", ", " ,  "])
def test_a_list_of_calls_is_recorded_alike_whether_quoted_or_not(comma: str) -> None:
    (cell,) = tiny().cells(pick=["mild fedprox before"])
    call = f"early_stopping(metric=loss{comma}patience=3)"
    found = [
        cell.override(dict([assignment(text)]))
        for text in (f"callbacks=[{call}, best_model]", f'callbacks=["{call}", best_model]')
    ]
    plain = '["early_stopping(metric=loss, patience=3)", "best_model"]'
    assert [list(one.overrides) for one in found] == [[f"callbacks={plain}"]] * 2
    assert digest(found[0]) == digest(found[1]) == digest(cell.override({"callbacks": json.loads(plain)}))
    assert Recipe(dataset="digits", callbacks=(call,)) == Recipe(
        dataset="digits", callbacks=("early_stopping(metric=loss, patience=3)",)
    )
