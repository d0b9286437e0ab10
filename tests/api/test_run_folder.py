"""`fedhead.run(out=…)` and `fedhead.load`: the folder of the command line, from Python and back."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedhead as fh
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.treefile import load_tree
from fedhead.engine.experiment.compute import Compute
from fedhead.recipes.recipe import Recipe
from fedhead.recipes.recipe_data import federation as recipe_federation
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT


@dataclass(frozen=True)
class Mine(fh.FedProx):
    """A method that only this module has under this name."""


def test_a_data_set_is_no_run() -> None:
    with pytest.raises(
        BadInput, match=r"^digits is a data set, no run folder: use fedhead\.Federation\.load\('digits'\)"
    ):
        fh.load("digits")


def federation(seed: int = 0) -> fh.Federation:
    return fh.Federation.load("digits", "dirichlet(0.3)", clients=3, subset=120, client_test=0.2, seed=seed)


def net() -> fh.SplitModel:
    return fh.split(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)), classifier="3")


def begin(out: Path, **changes: Any) -> fh.Result:
    def recall(confusion: Any) -> float:
        return float(confusion[0, 0])

    class Local(fh.FedProx):
        """Can't be imported."""

    settings: dict[str, Any] = {
        "model": net(),
        "method": dataclass(frozen=True)(Local)(mu=0.1),
        "rounds": 2,
        "lr": 0.1,
        "stages": [fh.CCVR(samples=20, epochs=1)],
        "metrics": [recall],
        "executor": "loop",
        "device": "cpu",
        **changes,
    }
    return fh.run(settings.pop("federation", None) or federation(), out=out, **settings)


def rows(result: fh.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in result.rows]


def test_python_and_the_command_line_write_the_same_run(tmp_path: Path) -> None:
    recipe = Recipe(
        dataset="digits", clients=3, subset=120, rounds=2, lr=0.1, method="fedprox", method_parameters={"mu": 0.1}
    )
    execute(recipe, tmp_path / "recipe", Compute(executor="loop", device="cpu"))
    made = fh.run(
        recipe_federation(recipe),
        "mlp",
        fh.FedProx(mu=0.1),
        rounds=2,
        lr=0.1,
        executor="loop",
        device="cpu",
        out=tmp_path / "python",
    )
    held = {folder: {path.name for path in (tmp_path / folder).iterdir()} for folder in ("recipe", "python")}
    assert held["python"] - held["recipe"] == {"initial.safetensors"}
    assert held["recipe"] <= held["python"]
    one, other = (load_tree(tmp_path / folder / CHECKPOINT)[0].leaves() for folder in ("recipe", "python"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    again = fh.load(tmp_path / "recipe")
    assert rows(again) == rows(made)
    written = fh.load(tmp_path / "python")
    assert written.recipe.flat() | {"subset": 120} == recipe.flat() | {"augment": None}
    assert (written.predict(federation().test.x) == again.predict(federation().test.x)).all()  # neither reads the data


def test_a_loaded_run_answers_as_the_one_that_was_just_trained(tmp_path: Path) -> None:
    made = begin(tmp_path / "run")
    read = fh.load(tmp_path / "run")
    assert read.history.equals(made.history.astype(read.history.dtypes))
    assert read.partition.equals(made.partition)
    assert read.clients.equals(made.clients)
    assert repr(read) == repr(made)
    with pytest.raises(
        BadInput,
        match=r"its own method, model 0, .* hold: give the same, fedhead.load\('.*run', method=…, mo",
    ):
        read.module()
    whole = {"model": net(), "method": made.trained.clients.method}
    read = fh.load(tmp_path / "run", **whole)
    x = federation().test.x
    for asked in ({}, {"client": 1}, {"stage": "ccvr"}):
        assert (read.scores(x, **asked) == made.scores(x, **asked)).all(), asked
    with pytest.raises(
        BadInput,
        match=r"its own federation, .* hold: give the same, fedhead.load\('.*run', federation=…\)",
    ):
        read.calibrate(fh.CCVR())
    with pytest.raises(BadInput, match="differs from today's split"):
        fh.load(tmp_path / "run", federation=federation(seed=1), **whole).calibrate(fh.CCVR())
    read = fh.load(tmp_path / "run", federation=federation(), **whole)
    assert (read.scores(x, client=1, stage="ccvr") == made.scores(x, client=1, stage="ccvr")).all()
    assert read.confusion().equals(made.confusion())
    assert read.calibrate(fh.CCVR(samples=20, epochs=1)).accuracy == made.stages["ccvr"].accuracy


class Stopped(BaseException):
    """Stands for a kill."""


def test_a_run_of_objects_goes_on_where_it_was_stopped_and_further(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = begin(tmp_path / "whole", rounds=4)

    def stop(now: fh.Snapshot) -> None:
        if now.round == 1:
            raise Stopped

    torch.manual_seed(0)
    with pytest.raises(Stopped):
        begin(tmp_path / "run", on_round=stop)
    assert fh.load(tmp_path / "run").record.state == "unfinished, stopped after round 1 of 2"
    begin(tmp_path / "run", resume=True)  # with other initial weights: the folder has those of the first time
    further = begin(tmp_path / "run", resume=True, rounds=4)
    assert rows(further) == rows(whole)
    x = federation().test.x
    assert (further.scores(x, stage="ccvr") == whole.scores(x, stage="ccvr")).all()
    assert RunFolder.open(tmp_path / "run").environment()["extended"] == [
        {"rounds": [2, 4], "stages": [["ccvr"], ["ccvr"]]}
    ]
    assert rows(begin(tmp_path / "run", resume=True, rounds=4)) == rows(whole)  # it is finished: loaded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "holds a finished run already: add rounds or stages to it with --resume"),
        ({"resume": True, "rounds": 1}, "rounds was 2 and is now 1"),
        ({"resume": True, "method": "fedavg"}, "method was 'Local' and is now 'fedavg'"),
        ({"resume": True, "method": Mine(mu=0.1)}, "another recipe: method"),
        ({"resume": True, "metrics": [lambda confusion: 0.0]}, "another recipe: metrics"),
        ({"resume": True, "model": "mlp"}, "another recipe: model was 'Sequential' and is now 'mlp'"),
        ({"resume": True, "stages": []}, "stages was .'ccvr'. and is now"),
        ({"resume": True, "rounds": 3, "federation": federation(seed=1)}, "differs from today's split"),
        (
            {"resume": True, "model": fh.split(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "1")},
            "begun with another model 0",
        ),
    ],
)
def test_another_run_is_not_gone_on_with(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    begin(tmp_path / "run")
    with pytest.raises(BadInput, match=says):
        begin(tmp_path / "run", **changes)


def test_the_command_line_says_that_a_run_was_begun_in_python(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    recipe = RunFolder.open(tmp_path / "run").recipe
    with pytest.raises(BadInput, match="its own federation, method, metric recall, model 0, weights, which no "):
        execute(recipe, tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"resume": True}, "resume=True needs out="),
        ({"out": "x", "resume": fh.Snapshot(1, fh.Tree(), {}, [])}, "resume: a run folder has its own checkpoint"),
        (
            {"out": "x", "method": "fedetf", "model": fh.build("mlp", (1, 8, 8), 10)},
            "needs a model with the etf",
        ),
    ],
)
def test_what_can_not_begin_leaves_no_folder(
    wrong: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=says):
        fh.run(**{"federation": federation(), "model": "mlp", "rounds": 1, **wrong})
    assert not list(tmp_path.iterdir())


def test_components_with_names_are_written_as_a_recipe_has_them(tmp_path: Path) -> None:
    fh.run(
        federation(),
        ["mlp(hidden=[4])", "mlp(hidden=[4], norm=none)"],
        Mine(mu=0.5),
        rounds=1,
        uploads=[fh.Clip(2.0), "half"],
        aggregator=fh.CoordinateMedian(),
        outliers="drop(norm=5)",
        metrics=["f1"],
        optimizer=fh.Adam(0.01),
        executor="loop",
        device="cpu",
        out=tmp_path / "run",
    )
    recipe = RunFolder.open(tmp_path / "run").recipe
    assert recipe.method.endswith("Mine")
    assert recipe.model == ("mlp(hidden=[4])", "mlp(hidden=[4], norm=none)")
    assert recipe.uploads[1] == "half"
    assert recipe.uploads[0].startswith("clip(")
    assert recipe.aggregator == "median"
    assert recipe.outliers == "drop"
    assert "optimizer" in RunFolder.open(tmp_path / "run").environment()["objects"]


def test_a_bar_is_shown_in_notebooks_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fh.run(federation(), "mlp", rounds=2, executor="loop", device="cpu", progress=True)
    assert capsys.readouterr().err.count("fedavg: round ") == 2
    shown: list[int] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    real = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "ipywidgets" or real(name))
    monkeypatch.setattr("rich.progress.Progress.update", lambda self, task, **now: shown.append(now["advance"]))
    monkeypatch.setattr("rich.live.Live.refresh", lambda self: None)
    fh.run(federation(), "mlp", rounds=2, executor="loop", device="cpu", progress=True)
    assert shown == [1, 1]


def test_runs_of_a_pattern_are_loaded_and_compared_by_seed(tmp_path: Path) -> None:
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            settings: dict[str, Any] = {"rounds": 1, "seed": seed, "executor": "loop", "device": "cpu"}
            fh.run(federation(), "mlp(hidden=[4])", method, out=tmp_path / f"{method}-{seed}", **settings)
    one, other = fh.load_all(tmp_path / "fedavg-*"), fh.load_all([tmp_path / "local-0", tmp_path / "local-1"])
    found = fh.compare([*one, *other], metric="personal", baseline="local").table
    assert found.loc["fedavg"].item() == pytest.approx(one.table["personal"].mean())
    assert one.table["seed"].tolist() == [0, 1]
    with pytest.raises(BadInput, match="does not exist: give run folders"):
        fh.load_all(tmp_path / "nothing-*")


def test_the_record_is_readable(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    kept = json.loads((tmp_path / "run" / "environment.json").read_text())["objects"]
    assert list(kept) == ["federation", "method", "metric recall", "model 0", "weights"]
    assert "Local(mu=0.1), code " in kept["method"]
