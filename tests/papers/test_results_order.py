"""Which runs of the tables are measured, in which order, and as far as the time allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tiny_table import CPU, tiny

from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.reproduce import reproduce
from fedhead.studies.sweep.seeds_and_splits import drawn_seeds


def test_seeds_are_the_papers_or_as_asked() -> None:
    assert drawn_seeds([7, 8, 10], None) == [7, 8, 10]
    assert drawn_seeds([7, 8, 10], 2) == [7, 8]
    assert drawn_seeds([7, 8, 10], [3]) == [3]
    cells = {cell.name: cell.seeds for cell in tables.load("fedetf/table1").cells()}
    assert cells["fedetf cifar10-0.1 general"] == [7, 8, 9, 10]
    assert cells["fedetf cifar10-0.05 general"] == [7, 8, 10]
    assert {tuple(cell.seeds) for cell in tables.load("ccvr/table2").cells()} == {(0, 1, 2)}
    assert {tuple(cell.seeds) for cell in tables.load("fedetf/table1").cells("small")} == {(0,)}


def test_the_seeds_of_fedetf_leave_no_client_empty() -> None:
    splits = {
        (str(cell.keys["dataset"]), str(cell.keys["partition"]), int(cell.keys["clients"]), seed)
        for name in ("table1", "table2", "table4")
        for cell in tables.load(f"fedetf/{name}").cells()
        for seed in cell.seeds
    }
    for dataset, text, clients, seed in splits:
        classes = {"cifar10": 10, "cifar100": 100, "tinyimagenet": 200}[dataset]
        y = np.repeat(np.arange(classes), 50_000 // classes)  # balanced, as all three are
        assert min(map(len, parse_partition(text).split(y, classes, clients, seed))) > 0, (dataset, text, seed)


# -- time ---------------------------------------------------------------------------------------------
def test_a_table_stops_between_runs_when_the_time_is_up(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = reproduce(
        tiny(), tmp_path / "runs", pick=["mild"], results=tmp_path, minutes=0, compute=CPU, log=said.append
    )
    assert said == ["the time is up: 8 of 8 runs are left"]
    assert outcome.left == 8
    assert "8 runs are left" in outcome.note()
    assert all(f.mean is None for f in outcome.cells)
