"""The leaderboard's page is what the committed studies and runs make."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path
from types import ModuleType

import pytest

from fedhead.recipes.recipe import load

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tuned")


def test_the_page_is_made_of_the_committed_files(tuned: ModuleType) -> None:
    assert tuned.PAGE.read_text(encoding="utf-8") == tuned.page(tuned.read_rows())


def test_every_entry_has_its_study_and_runs_of_other_seeds(tuned: ModuleType) -> None:
    rows = tuned.read_rows()
    assert tuned.SEARCH_SEED not in tuned.SEEDS
    for entry in tuned.entries():
        for setting in ("tuned", "default"):
            assert len(tuned.values(rows, entry, setting)) == len(tuned.SEEDS)
        with (entry.folder / "trials.csv").open(encoding="utf-8", newline="") as file:
            trials = list(csv.DictReader(file))
        assert len(trials) == tuned.TRIALS
        best = max((row for row in trials if row["state"] == "complete"), key=lambda row: float(row["value"]))
        recipe = load(entry.folder / "best.yaml")
        assert (recipe.method, recipe.seed) == (entry.method, tuned.SEARCH_SEED)
        assert recipe.lr == float(best["lr"])
