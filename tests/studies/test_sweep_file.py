"""How sweeps are written: on the command line, in Python and in files; what is refused, in one line each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells

GRID = """# What the learning rate does
recipe: digits
seeds: [3, 5]
base: {rounds: 2, stage.ccvr.samples: 7}
axes:
  lr: [0.1, 0.2]
  method: [fedavg, "fedprox(mu=0.5)"]
  data:
    mild: {set: {partition: dirichlet(0.5)}}
    hard: {set: {partition: dirichlet(0.05)}, stage: ccvr}
rules:
  - {when: {lr: 0.2, data: hard}, set: {momentum: 0.5}}
skip: [{method: fedavg, lr: [0.2]}]
"""


def grid(folder: Path, text: str = GRID) -> Path:
    (folder / "grid.yaml").write_text(text)
    return folder / "grid.yaml"


def test_a_file_says_what_the_cells_are(tmp_path: Path) -> None:
    cells = sweep_cells(plan(grid(tmp_path), {"batch_size": 16}))
    assert [cell.name for cell in cells] == [
        "lr=0.1 fedavg mild",
        "lr=0.1 fedavg hard",
        "lr=0.1 fedprox(mu=0.5) mild",
        "lr=0.1 fedprox(mu=0.5) hard",
        "lr=0.2 fedprox(mu=0.5) mild",
        "lr=0.2 fedprox(mu=0.5) hard",
    ]
    recipes = [next(iter(cell.runs.values())) for cell in cells]
    assert [recipe.momentum for recipe in recipes] == [0.9] * 5 + [0.5]
    assert [recipe.stages for recipe in recipes] == [(), ("ccvr",)] * 3
    assert recipes[1].stage_parameters == {"ccvr": {"samples": 7}}
    assert recipes[2].method_parameters == {"mu": 0.5}
    assert {(recipe.rounds, recipe.batch_size, recipe.seed) for recipe in recipes} == {(2, 16, 3)}
    assert [str(path) for path in cells[3].runs] == [
        "runs/lr=0.1-fedprox-mu=0.5-hard/seed-3",
        "runs/lr=0.1-fedprox-mu=0.5-hard/seed-5",
    ]
    assert len(sweep_cells(plan(grid(tmp_path), {"weight_decay": [0.0, 0.1]}))) == 12  # a further axis


def test_lists_that_are_values_and_lists_that_are_axes() -> None:
    table = plan("digits", {"stages": ["ccvr", "ridge"], "model": ["mlp", ["mlp", "mlp"]]})
    assert table.axes() == ["model"]
    recipes = [next(iter(cell.runs.values())) for cell in sweep_cells(table)]
    assert [recipe.stages for recipe in recipes] == [("ccvr", "ridge")] * 2
    assert [recipe.model for recipe in recipes] == ["mlp", ("mlp", "mlp")]


def test_parameters_hold_whichever_axis_comes_first() -> None:
    table = plan("digits", {"method.mu": [0.1, 0.2], "method": ["fedprox", "moon"]})
    cells = sweep_cells(table)
    assert [cell.name for cell in cells] == ["fedprox mu=0.1", "fedprox mu=0.2", "moon mu=0.1", "moon mu=0.2"]
    assert [next(iter(cell.runs.values())).method_parameters["mu"] for cell in cells] == [0.1, 0.2] * 2


def test_an_axis_over_parameters_of_a_method_or_model_that_all_cells_have(tmp_path: Path) -> None:
    table = plan(
        "digits", {"method": "fedprox", "method.mu": [0.1, 0.2], "model": "mlp(scale=2)", "model.hidden": [[8]]}
    )
    recipes = [next(iter(cell.runs.values())) for cell in sweep_cells(table)]
    assert [recipe.method_parameters for recipe in recipes] == [{"mu": 0.1}, {"mu": 0.2}]
    assert [(recipe.model, recipe.model_parameters) for recipe in recipes] == [("mlp(scale=2)", {"hidden": [8]})] * 2
    text = "base: {method: fedprox}\naxes: {method.mu: [0.1, 0.2]}"
    recipes = [next(iter(cell.runs.values())) for cell in sweep_cells(plan(grid(tmp_path, text), {"method": "moon"}))]
    assert [(recipe.method, recipe.method_parameters["mu"]) for recipe in recipes] == [("moon", 0.1), ("moon", 0.2)]


def test_stages_bring_their_parameters_along() -> None:
    base = {"stages": [["ccvr(samples=5", "epochs=2)"], ["ccvr", "ridge"]]}  # as YAML splits it
    cells = sweep_cells(plan("digits", base))
    recipes = [next(iter(cell.runs.values())) for cell in cells]
    assert [cell.name for cell in cells] == ["ccvr(samples=5, epochs=2)", "ccvr+ridge"]
    assert [recipe.stages for recipe in recipes] == [("ccvr",), ("ccvr", "ridge")]
    assert [recipe.stage_parameters for recipe in recipes] == [{"ccvr": {"samples": 5, "epochs": 2}}, {}]


def test_folders_differ_where_names_would_not() -> None:
    cells = sweep_cells(plan("digits", {"weights": ["a(0.1)", "a 0.1", "x" * 300]}))
    folders = [next(iter(cell.runs)).parent.name for cell in cells]
    assert len(set(folders)) == 3
    assert all(len(folder) < 120 for folder in folders)


def test_a_recipes_own_code_is_found_beside_the_file(tmp_path: Path) -> None:
    text = "recipe: own.yaml\nbase: {method: moon}\naxes: {method: [fedavg, mine.py:Mine], lr: [0.1]}"
    (tmp_path / "mine.py").write_text("import fedhead as fh\n\nclass Mine(fh.FedAvg):\n    pass\n")
    (tmp_path / "own.yaml").write_text("rounds: 3\nmethod: fedprox\nmethod.mu: 0.3")  # whose parameter goes with it
    recipe = next(iter(sweep_cells(plan(grid(tmp_path, text), {}))[1].runs.values()))
    assert (recipe.rounds, recipe.folders[0]) == (3, tmp_path.resolve())


@pytest.mark.slow
def test_a_dry_run_lists_the_cells(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "digits", "lr=[0.1,0.2]", "partition=[dirichlet(0.1, capped),iid]", "--dry-run"]
    assert call(words) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "lr=0.1 dirichlet(0.1, capped)"
    assert said.err == "4 cells, 4 runs\n"
    assert call([*words, "--seeds", "2"]) == 0
    assert capsys.readouterr().err == "4 cells, 8 runs\n"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"mehtod": ["fedavg"]}, "unknown key 'mehtod': did you mean 'method'"),
    ({"lr": []}, "lr: the axis is empty"),
    ({"lr": [0.1, 0.1]}, "lr: 0.1 is there twice"),
    ({"lr": [0.1, -1]}, "lr=-1: lr: -1 is out of range"),
    ({"lr": [0.1], "seed": [1, 2]}, "give them with --seeds"),
    ({"lr": 0.1}, "nothing varies"),
    ({"method": ["fedavg", fh.FedProx()]}, "method: FedProx(mu=0.01) is an object, and a sweep writes its values into"),
    ({"method": fh.FedProx, "lr": [0.1]}, "give a name, such as 'fedavg', 'fedprox(mu=0.1)' or 'mine.py:FedMine'"),
    ({"local_epochs": [1, "1"]}, "is there twice"),
    ({"method": ["fedprox(0.1)"]}, "name the parameters, as in fedprox"),
    ({"method": "fedprox(mu=0.1)", "method.mu": [0.1, 0.2]}, "method.mu: it is an axis and has the value 0.1 as well"),
    ({"method": "fedprox(mu=0.1)", "method.mu": 0.2, "lr": [0.1]}, "fedprox(mu=0.1): method.mu is given as well"),
    ({"method": ["fedprox(mu=0.1)"], "method.mu": [0.2, 0.3]}, "fedprox(mu=0.1) sets method.mu, which is given"),
    ({"method": ["moon", "fedprox(mu=0.1)"], "method.mu": 0.2}, "fedprox(mu=0.1) sets method.mu, which is given"),
    ({"stages": [["ccvr(samples=5)"], ["ridge"]], "stage.ccvr.samples": 6}, "ccvr(samples=5) sets stage.ccvr.samples"),
    ({"executor": "loop", "lr": [0.1]}, "executor is no recipe key, but an option of commands"),
    ({"lr": [0.1], "stage.ccvr.samples": 5}, "no cell has the stage 'ccvr'"),
    (["lr"], "axes: ['lr'] is not a mapping"),  # type: ignore[list-item]  # what Python's users may give
    ({5: [1, 2]}, "unknown key '5'"),  # type: ignore[dict-item]
    ({"stages": [["ccvr"]], "stage.cvcr.samples": 5}, "unknown stage 'cvcr': did you mean 'ccvr'"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_axes_are_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as error:
        sweep_cells(plan("digits", given))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "neither a recipe nor a sweep"),
        ("recipe: digits\nbase: {lr: 1}", "needs the key 'axes'"),
        ("axes: {}", "nothing varies"),
        ("axes: {lr: 3}", "axis lr: give a list of values"),
        ("axes: {lr: []}", "lr: the axis is empty"),
        ("axes: {lt: [1, 2]}", "unknown key 'lt': did you mean 'lr'"),
        ("axes: {data: {a: {sett: {lr: 1}}}}", "did you mean 'set'"),
        ("axes: {data: {a: 3}}", "3 is not a mapping"),
        ("axes: {data: {a: {set: [1]}}}", "[1] is not a mapping"),
        ("axes: {lr: [1]}\nrules: [{set: {lr: 1}}]", "lacks `when`"),
        ("axes: {lr: [1]}\nrules: [{when: {method: fedavg}, set: {lr: 1}}]", "unknown axis"),
        ("axes: {lr: [1, 2]}\nskip: [{lr: 3}]", "choice of"),
        ("axes: {lr: [1]}\nskip: [{lr: 1}]", "there is no cell"),
        ("axes: {lr: [1]}\nseeds: 0", "seeds: 0 is neither how many"),
        ("axes: {lr: [1]}\nseeds: [1, 1]", "[1, 1] is neither"),
        ("axes: {lr: [1]}\nbases: {lr: 1}", "did you mean 'base'"),
        ("base: {method.mu: 1}\naxes: {method: [fedprox, moon]}", "base: method.mu has no effect"),
        ("axes: [1]", "axes: [1] is not a mapping"),
        ("axes: {a: {x: {set: {lr: 1}}, y: {set: {lr: 1}}}}", "the cells 'x' and 'y' are the same"),
        ("paper: ccvr\ntable: 2\naxes: {lr: [1]}", "run those by name with fedhead reproduce"),
        ("axes: {lr: [1", "not valid YAML"),
    ],
)
def test_bad_files_are_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as error:
        sweep_cells(plan(grid(tmp_path, text), {}))
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "0/4"], "--shard '0/4': write which of how many, from 1/16 to 16/16"),
        (["--shard", "5/4"], "--shard '5/4': write which of how many"),
        (["--shard", "three"], "write which of how many, from 1/16"),
        (["--seeds", "0"], "seeds: 0 is neither how many"),
        (["--minutes", "nan"], "minutes: nan is not finite"),
        (["--minutes", "1e308"], "--minutes: 1e+308 is out of range, it must be at least 0 and at most 10000000"),
        (["lr=[0.3]"], "lr is given twice"),
        (["method.nu=3"], "method.nu"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["sweep", "digits", "lr=[0.1,0.2]", *words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seeds", [[], [1, 1], 2.5, "a", [-1], True])
def test_seeds_that_are_none_are_refused(seeds: Any) -> None:
    with pytest.raises(BadInput, match=re.escape(f"seeds: {seeds!r} is neither how many")):
        sweep_cells(plan("digits", {"lr": [0.1, 0.2]}), seeds)


@pytest.mark.parametrize("values", [np.array([0.1, 0.2]), [np.float64(0.1), np.float64(0.2)]])
def test_values_and_seeds_of_numpy_are_numbers(values: Any) -> None:
    found = sweep_cells(plan("digits", {"lr": values, "rounds": np.int64(3)}), np.arange(2))  # type: ignore[arg-type]
    assert [cell.name for cell in found] == ["lr=0.1", "lr=0.2"]
    assert yaml.safe_load(next(iter(found[0].runs.values())).to_yaml())["rounds"] == 3


def test_shards_in_python_are_texts() -> None:
    with pytest.raises(BadInput, match="write which of how many"):
        fh.sweep("digits", {"lr": [0.1, 0.2]}, shard=(1, 3))  # type: ignore[arg-type]


def test_axes_in_python_are_a_mapping() -> None:
    with pytest.raises(BadInput, match=re.escape('axes is list: write a mapping, such as {"method": ["fedavg"')):
        fh.sweep("digits", ["method=[fedavg,fedprox]"])  # type: ignore[arg-type]  # the fault


def test_the_file_in_a_sweeps_folder_is_that_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--minutes", "0", "--out", str(tmp_path / "out")]
    assert call(["sweep", str(grid(tmp_path)), "rounds=3", *words]) == 0
    before = (tmp_path / "out" / "table.csv").read_text()
    assert call(["sweep", str(tmp_path / "out" / "sweep.yaml"), *words]) == 0, capsys.readouterr().err
    assert (tmp_path / "out" / "table.csv").read_text() == before


def test_a_folder_that_no_one_can_make_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["sweep", "digits", "lr=[0.1,0.2]", "--minutes", "0", "--out", "/proc/sweep"]) == 2
    assert "/proc/sweep can't be written to" in capsys.readouterr().err


def test_a_sweeps_file_is_no_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", str(grid(tmp_path)), "--out", str(tmp_path / "out")]) == 2
    assert "run it with fedhead sweep" in capsys.readouterr().err


@pytest.mark.slow
def test_folders_that_hold_something_else_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "digits", "lr=[0.1,0.2]", "--minutes", "0", "--out", str(tmp_path / "out")]
    assert call(words) == 0
    capsys.readouterr()
    for change, message in (
        (["rounds=3"], "holds another sweep: rounds was None and is now 3;"),
        (["batch_size=8"], "holds another sweep: batch_size was 32 and is now 8;"),
        (["momentum=[0.1,0.2]"], "holds another sweep: momentum 0.1 was None and is now {"),
    ):
        assert call([*words, *change]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "out" / "sweep.yaml").write_text("lr: 3")
    assert call(words) == 2
    assert "is no sweep's file" in capsys.readouterr().err
    (tmp_path / "out" / "sweep.yaml").unlink()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert call(words) == 2
    assert "is not empty and holds no sweep" in capsys.readouterr().err
    assert call([*words[:-1], str(tmp_path / "out" / "notes.txt")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ('{data: {1: {set: {lr: 0.1}}, "1": {set: {lr: 0.2}}}}', "axis data: 1 is there twice"),
        ('{1: {a: {set: {lr: 0.1}}, b: {}}, "1": {c: {set: {clients: 3}}, d: {}}}', "axes: 1 is there twice"),
    ],
)
def test_names_that_are_one_text_do_not_hide_each_other(tmp_path: Path, axes: str, said: str) -> None:
    (tmp_path / "grid.yaml").write_text(f"axes: {axes}\n")
    with pytest.raises(BadInput, match=rf"{said}, as a number and as text; rename one$"):
        plan(tmp_path / "grid.yaml", {})
