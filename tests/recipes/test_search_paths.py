"""Recipes that fedhead writes find the user's own files again, wherever these are and wherever the command is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.methods import METHODS
from fedhead.recipes.component_kinds import component
from fedhead.recipes.components import folders_from
from fedhead.recipes.recipe import Recipe, load
from fedhead.recipes.search_paths import file_of, to_write
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells

MINE = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Mine(fh.FedAvg):
    mu: float = 0.1
"""
RECIPE = """dataset: digits
method: mine.py:Mine
subset: 100
clients: 2
rounds: 1
model: mlp(hidden=[4])
partition: iid
"""


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
    return type(component(METHODS, recipe.method, recipe.method_parameters, recipe.folders)).__name__


@pytest.mark.slow
def test_the_best_setting_of_a_study(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fh.tune(recipe, "method.mu=uniform(0, 1)", out="study", trials=1)
    best = Path("study/best.yaml").resolve()
    assert best.read_text().startswith("folders: [../../code]\n")
    monkeypatch.chdir(recipe.parent.parent / "elsewhere")
    assert method_of(load(best)) == "Mine"


@pytest.mark.slow
def test_the_best_setting_where_the_file_is_in_the_working_directory(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    settings = ["method=mine.py:Mine", "subset=100", "rounds=1", "model=mlp(hidden=[4])"]
    fh.tune("digits", *settings, "method.mu=uniform(0, 1)", out="runs/study", trials=1)
    monkeypatch.chdir("/")
    assert method_of(load(recipe.parent / "runs" / "study" / "best.yaml")) == "Mine"


@pytest.mark.slow
def test_the_file_of_a_sweep_and_the_recipes_of_its_runs(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(["sweep", str(recipe), "method.mu=[0.1,0.2]", "--out", "grid", "--executor", "loop"]) == 0
    grid = Path("grid").resolve()
    monkeypatch.chdir(recipe.parent.parent / "elsewhere")
    (found, _) = sweep_cells(plan(grid / "sweep.yaml", {}))
    assert method_of(next(iter(found.runs.values()))) == "Mine"
    assert call(["sweep", str(grid / "sweep.yaml"), "--out", str(grid)]) == 0  # as docs/sweeps.md has it
    assert method_of(load(grid / "runs" / "mu=0.1" / "seed-0" / "config.yaml")) == "Mine"  # the report's command


@pytest.mark.slow
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
    assert "folders" not in Recipe(dataset="digits").to_yaml()


def test_folders_are_a_list_of_paths(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("folders: code\n")
    with pytest.raises(BadInput, match=r"one\.yaml: folders: 'code' is not a list of folders, such as \[\.\./code\]$"):
        load(tmp_path / "one.yaml")
    (tmp_path / "grid.yaml").write_text("folders: [1]\naxes: {lr: [0.1, 0.2]}\n")
    with pytest.raises(BadInput, match=r"grid\.yaml: folders: \[1\] is not a list of folders"):
        plan(tmp_path / "grid.yaml", {})


# -- folders that are not there any more --------------------------------------------------------------
OTHER = MINE.replace("mu: float = 0.1", "mu: float = 0.1\n    nu: float = 0.2")


def moved(recipe: Path) -> Path:
    """Move the folder of the recipe's code away, and return where it is now."""
    return recipe.parent.rename(recipe.parent.with_name("moved"))


def test_a_file_that_is_nowhere_is_refused_with_where_it_was_looked_for(recipe: Path) -> None:
    fh.tune(recipe, "method.mu=uniform(0, 1)", out="study", trials=1)
    study = Path("study/best.yaml")
    moved(recipe)
    expected = r"method 'mine\.py:Mine': there is no file mine\.py in .*study or .*code or .*correct `folders`"
    with pytest.raises(BadInput, match=expected):
        method_of(load(study))
    assert call(["run", str(study), "method=fedavg", "--out", "plain"]) == 0  # no file is looked for
    (study.parent / "mine.py").write_text(MINE)  # beside the recipe: looked for there first
    assert method_of(load(study)) == "Mine"


@pytest.fixture
def run(recipe: Path) -> Path:
    assert call(["run", str(recipe), "--out", "run"]) == 0
    return Path("run")


@pytest.mark.slow
def test_a_run_whose_code_is_gone_says_where_it_was(
    recipe: Path, run: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    code = moved(recipe)
    needs = r"^run needs the method mine\.py:Mine, which was in .*code/mine\.py: put the file back there, or into run$"
    with pytest.raises(BadInput, match=needs):
        fh.load(run).module()
    again = ["run", "run/config.yaml", "rounds=2", "--out", "run", "--resume"]
    assert call(again) == 2
    assert "run needs the method mine.py:Mine" in capfd.readouterr().err
    for command in (["report", "run"], ["compare", "run"]):  # which need no code
        assert call(command) == 0
    Path("mine.py").write_text(OTHER)  # another file, in the working directory
    assert fh.load(run).module() is not None
    assert "mine.py (method mine.py:Mine) changed since run was begun" in caplog.text
    assert call(again) == 2
    assert "mine.py (method mine.py:Mine) changed since run was begun, and it has 1 round of" in capfd.readouterr().err
    (code / "mine.py").rename("run/mine.py")
    assert call(again) == 0


def test_an_analysis_of_ones_own_does_not_need_the_code_of_the_run(
    recipe: Path, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    moved(recipe)
    Path("own.py").write_text(
        "import fedhead as fh\n\n"
        "@fh.analysis('rounds_of_runs', reads='records')\n"
        "def rounds(runs, options):\n    return fh.AnalysisReport({'rounds': [len(run.rows) for run in runs]})\n"
    )
    try:
        assert call(["analyse", "own.py:rounds", "run", "--json"]) == 0
    finally:
        del fh.ANALYSES["rounds_of_runs"]
    assert '"rounds": [1]' in capfd.readouterr().out


def test_a_run_that_was_begun_in_python_says_that_its_code_changed(
    recipe: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = fh.Federation.load("digits", "iid", clients=2, subset=100)
    Path("mine.py").write_text(MINE)
    fh.run(federation, "mlp(hidden=[4])", "mine.py:Mine", rounds=1, out="run")
    assert fh.load("run").module() is not None
    assert "changed since" not in caplog.text
    Path("mine.py").write_text(OTHER)
    assert fh.load("run").module() is not None
    assert ":Mine) changed since run was begun: what is seen now is the new code's" in caplog.text
