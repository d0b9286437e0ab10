"""What cells of tables are called: by the data that they were run with, and in the lines of progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_table import CPU, tiny

from fedhead.data.sources.datasets import DATASETS
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.cell_names import name_cells
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
    reproduce(table, tmp_path, pick=["mild"], seeds=1, settings=CPU, log=said.append)
    assert said == [
        "[1/2] digits dirichlet(0.5) fedavg seed 0: paper/tiny mild fedavg before/ccvr",
        "[2/2] digits dirichlet(0.5) fedavg seed 0: paper/tiny mild fedprox before/ccvr",
    ]


def test_many_cells_of_several_tables_and_what_was_changed() -> None:
    figure = tables.load("fedetf/figure6")
    steps = [("fedetf/figure6", cell) for cell in figure.cells(pick=["d-"])]
    (strong, _) = tiny().varied(tiny().cells(pick=["mild fedprox"]), ["strong"])
    names = [cell.name for _, cell in steps]
    assert name_cells([*steps, ("paper/tiny", strong)]) == (
        f"fedetf/figure6 {'/'.join(names[:3])}/… {len(names) - 3} more; paper/tiny mild fedprox before method.mu=0.5"
    )
    assert len(names) > 4


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
    assert Recipe(callbacks=(call,)) == Recipe(callbacks=("early_stopping(metric=loss, patience=3)",))
