"""Which runs of the tables are measured, in which order, and as far as the time allows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_table import CPU, rows, tiny

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.data.partitions.partition_registry import parse as parse_partition
from fedhead.papers.tables import paper_tables as tables
from fedhead.papers.tables.paper_tables import PaperTable
from fedhead.papers.tables.reproduce import reproduce, reproduce_next
from fedhead.papers.tables.run_cells import MeasureResult
from fedhead.recipes.recipe import Recipe
from fedhead.studies import time_budget, training
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
def test_no_run_is_begun_that_is_not_likely_to_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time_budget.time, "monotonic", lambda: now[0])
    mine, recipe = time_budget.TimeBudget(minutes=10), Recipe(rounds=10)
    assert mine.fits(recipe)  # nothing is known yet
    mine.record(Recipe(rounds=5), 100)  # so 10 rounds take 200 seconds
    assert mine.fits(recipe)
    now[0] = 450.0
    assert not mine.fits(recipe)
    assert mine.fits(Recipe(rounds=5))
    assert not mine.fits(Recipe(rounds=10, model="digitscnn"))  # of which nothing is known
    assert not mine.exhausted
    now[0] = 600.0
    assert mine.exhausted
    assert time_budget.TimeBudget().fits(recipe)


def test_a_table_stops_between_runs_when_the_time_is_up(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = reproduce(
        tiny(), tmp_path / "runs", pick=["mild"], results=tmp_path, minutes=0, settings=CPU, log=said.append
    )
    assert said == ["the time is up: 4 of 4 runs are left"]
    assert outcome.left == 4
    assert "4 runs are left" in outcome.note()
    assert all(f.mean is None for f in outcome.cells)


def test_cost_follows_from_rounds_and_model() -> None:
    small, long = Recipe(rounds=1), Recipe(rounds=3, local_epochs=2, participation=0.5)
    assert time_budget.cost(long) == pytest.approx(3 * time_budget.cost(small))
    assert time_budget.cost(Recipe(rounds=1, model="digitscnn")) > time_budget.cost(small)


# -- what comes next ----------------------------------------------------------------------------------
def _use(monkeypatch: pytest.MonkeyPatch, **made: PaperTable) -> None:
    monkeypatch.setattr(tables, "names", lambda: dict.fromkeys(made, Path()))
    monkeypatch.setattr(tables, "load", made.__getitem__)


def test_next_measures_what_is_missing_by_priority_over_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tiny(**{"rounds: 2": "rounds: 3", "priority: 1": "priority: 1"})
    _use(monkeypatch, slow=slow, fast=tiny())
    said: list[str] = []
    nothing = MeasureResult(0, {})
    assert reproduce_next(tmp_path / "runs", tmp_path, 10, seeds=1, settings=CPU, log=said.append) == nothing
    order = [(r["table"], r["cell"]) for r in rows(tmp_path)]
    names = ["mild fedavg", "hard fedavg", "mild fedprox", "hard fedprox"]
    expected = [
        (table, f"{name} {stage}")
        for pair in (names[:2], names[2:])  # FedProx has a later priority
        for table in ("fast", "slow")  # fewer rounds, the same number of results
        for name in pair
        for stage in ("before", "ccvr")
    ]
    assert order == expected
    said.clear()
    assert reproduce_next(tmp_path / "elsewhere", tmp_path, 10, seeds=1, settings=CPU, log=said.append) == nothing
    assert said == [f"nothing is missing: {tmp_path} has every published value, with these seeds and splits"]
    assert len(rows(tmp_path)) == len(expected)


def test_next_leaves_out_data_that_is_not_there_and_goes_on_after_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tiny(**{"dataset: digits, subset: 120": "dataset: cifar10", "model: mlp": "model: simplecnn",
                     "model.hidden: [8], ": ""})  # fmt: skip
    _use(monkeypatch, absent=absent, there=tiny())
    real = training.execute

    def fails(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        if recipe.partition == "dirichlet(0.5)":
            raise BadInput("something is wrong with it")
        return real(recipe, *args, **kwargs)

    monkeypatch.setattr(training, "execute", fails)
    said: list[str] = []
    settings = replace(CPU, data=tmp_path / "no-data")
    measured = reproduce_next(tmp_path / "runs", tmp_path, 10, seeds=1, settings=settings, log=said.append)
    names = [f"there mild {method} before/ccvr, seed 0" for method in ("fedavg", "fedprox")]
    assert measured == MeasureResult(2, dict.fromkeys(names, "something is wrong with it"))
    assert said[0] == "cifar10 is not there: its cells are left out"
    assert not [text for text in said if "the time is up" in text]
    assert {r["cell"].split()[0] for r in rows(tmp_path)} == {"hard"}
    _use(monkeypatch, absent=absent)
    with pytest.raises(BadInput, match=r"nothing could be measured: the data sets of what .* are not in .*no-data;"):
        reproduce_next(tmp_path / "runs", tmp_path / "none", 10, seeds=1, settings=settings)


def test_next_says_that_the_time_is_up_when_it_begins_no_more_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(monkeypatch, one=tiny())  # FedProx has a later priority

    monkeypatch.setattr(time_budget.TimeBudget, "fits", lambda self, recipe: recipe.method == "fedprox")
    said: list[str] = []
    measured = reproduce_next(tmp_path / "runs", tmp_path, 10, seeds=1, settings=CPU, log=said.append)
    assert measured == MeasureResult(2, {})
    assert [text.partition(":")[0] for text in said[:-1]] == [
        "[1/2] digits dirichlet(0.5) fedprox seed 0",
        "[2/2] digits dirichlet(0.1) fedprox seed 4",
    ]
    assert said[-1] == "the time is up: 2 of 4 runs are left"


def test_the_command_names_what_failed_after_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _use(monkeypatch, one=tiny(), two=tiny(**{"rounds: 2": "rounds: 3"}))
    real = training.execute

    def fails(recipe: Recipe, *args: Any, **kwargs: Any) -> Any:
        if recipe.partition == "dirichlet(0.5)" and recipe.method == "fedavg":
            raise BadInput("something is wrong with it")
        return real(recipe, *args, **kwargs)

    monkeypatch.setattr(training, "execute", fails)
    line = ["--next", "10m", "--results", str(tmp_path), "--out", str(tmp_path / "out"), "--seeds", "1"]
    assert call(["reproduce", *line, "--device", "cpu", "--executor", "loop"]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    name = "one mild fedavg before/ccvr, seed 0"
    fix = "fix it, and the same command runs what failed again"
    assert error == f"error: {name}: something is wrong with it (1 more failed); {fix}"
    assert len(rows(tmp_path)) == 2 * 6  # all but the two that failed, each with its stage
    monkeypatch.setattr(training, "execute", real)
    assert call(["reproduce", *line, "--device", "cpu", "--executor", "loop"]) == 0
    assert len(rows(tmp_path)) == 2 * 8


def test_the_first_priorities_are_the_central_tables_on_cifar10() -> None:
    first: dict[int, set[str]] = {}
    for name in tables.names():
        for cell in tables.load(name).cells():
            first.setdefault(cell.priority, set()).add(f"{name} {cell.recipe(0).dataset}")
    assert first[1] == {f"ccvr/{t} cifar10" for t in ("table1", "table2", "table3", "figure7")}
    assert first[2] == {"fedetf/table1 cifar10", "fedetf/table4 cifar10"}
    assert first[4] == {"ccvr/table2 cifar100", "fedetf/table1 cifar100"}
