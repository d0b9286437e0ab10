"""Recipes that fedhead writes find the user's own files again, wherever these are and wherever the command is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedhead as fh
from fedhead.cli import call
from fedhead.core.errors import BadInput
from fedhead.experiment import build
from fedhead.experiment.code_folders import file_of, to_write
from fedhead.experiment.components import folders_from
from fedhead.experiment.recipe import Recipe, load
from fedhead.experiment.sweep_file import plan
from fedhead.experiment.sweep_runs import sweep_cells
from fedhead.methods import METHODS

MINE = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Mine(fh.FedAvg):
    mu: float = 0.1
"""
RECIPE = "method: mine.py:Mine\nsubset: 100\nclients: 2\nrounds: 1\nmodel: mlp(hidden=[4])\npartition: iid\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe with its own method beside it; commands are given in another folder."""
    for name in ("code", "work", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "mine.py").write_text(MINE)
    (tmp_path / "code" / "mine.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "code" / "mine.yaml"


def method_of(recipe: Recipe) -> str:
    return type(build.component(METHODS, recipe.method, recipe.method_parameters, recipe.folders)).__name__


def test_the_best_setting_of_a_study(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fh.tune(recipe, "method.mu=uniform(0, 1)", out="study", trials=1)
    best = Path("study/best.yaml").resolve()
    assert best.read_text().startswith("folders: [../../code]\n")
    monkeypatch.chdir(recipe.parent.parent / "elsewhere")
    assert method_of(load(best)) == "Mine"


def test_the_best_setting_where_the_file_is_in_the_working_directory(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    settings = ["method=mine.py:Mine", "subset=100", "rounds=1", "model=mlp(hidden=[4])"]
    fh.tune("digits", *settings, "method.mu=uniform(0, 1)", out="runs/study", trials=1)
    monkeypatch.chdir("/")
    assert method_of(load(recipe.parent / "runs" / "study" / "best.yaml")) == "Mine"


def test_the_file_of_a_sweep_and_the_recipes_of_its_runs(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(["sweep", str(recipe), "method.mu=[0.1,0.2]", "--out", "grid", "--executor", "loop"]) == 0
    grid = Path("grid").resolve()
    monkeypatch.chdir(recipe.parent.parent / "elsewhere")
    (found, _) = sweep_cells(plan(grid / "sweep.yaml", {}))
    assert method_of(next(iter(found.runs.values()))) == "Mine"
    assert call(["sweep", str(grid / "sweep.yaml"), "--out", str(grid)]) == 0  # as docs/sweeps.md has it
    assert method_of(load(grid / "runs" / "mu=0.1" / "seed-0" / "config.yaml")) == "Mine"  # the report's command


def test_a_sweep_over_the_best_setting_of_a_study(recipe: Path) -> None:
    fh.tune(recipe, "method.mu=uniform(0, 1)", out="study", trials=1)
    cells = sweep_cells(plan("study/best.yaml", {"lr": [0.1, 0.2]}))
    assert [method_of(next(iter(cell.runs.values()))) for cell in cells] == ["Mine", "Mine"]


def test_first_weights_and_loggers_are_found_too(recipe: Path) -> None:
    for place, name in (("logs", "log.py"), ("weights", "first.safetensors")):
        (recipe.parent / place).mkdir()
        (recipe.parent / place / name).touch()
    keys = {"loggers": ["log.py:Mine(level=2)"], "weights": "first.safetensors"}
    found = Recipe.from_flat(keys, [recipe.parent / "weights", recipe.parent / "logs"])
    assert folders_from(recipe.parent / "study", [found]) == ["../logs", "../weights"]


def test_nothing_is_written_where_nothing_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir("/")
    assert [file_of(name) for name in ("fedavg", "package.module:Name", "a/mine.py:Mine")] == [None, None, "a/mine.py"]
    assert to_write(["mine.py", f"{tmp_path}/mine.py", "nowhere.py"], [tmp_path], tmp_path) == []
    assert "folders" not in Recipe().to_yaml()


def test_folders_are_a_list_of_paths(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("folders: code\n")
    with pytest.raises(BadInput, match=r"one\.yaml: folders: 'code' is not a list of folders, such as \[\.\./code\]$"):
        load(tmp_path / "one.yaml")
    (tmp_path / "grid.yaml").write_text("folders: [1]\naxes: {lr: [0.1, 0.2]}\n")
    with pytest.raises(BadInput, match=r"grid\.yaml: folders: \[1\] is not a list of folders"):
        plan(tmp_path / "grid.yaml", {})
