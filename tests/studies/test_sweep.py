"""Sweeps: each run ends as its single run, what trains alike trains once, and what was stopped goes on."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from file_faults import disk_full, faulty_files
from same_runs import assert_same_runs

import fedhead as fh
from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.engine.experiment.compute import Compute
from fedhead.runs import environment
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import RESULT
from fedhead.studies import run_job
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells

LOOP = Compute(executor="loop", device="cpu")
TINY = {"clients": 3, "rounds": 1, "local_epochs": 1, "subset": 60, "model.hidden": [[6]]}
STAGES = {"stages": [[], ["ccvr"]], "stage.ccvr.samples": 5, "stage.ccvr.epochs": 1}
WORDS = ["clients=3", "rounds=1", "local_epochs=1", "subset=60", "model.hidden=[[6]]", "--executor", "loop"]


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_commit", lambda: None)  # asking git takes longer than these runs


def test_runs_equal_single_ones_and_those_that_train_alike_train_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = plan("digits", {"method": ["fedavg", "fedprox(mu=0.1)"], **STAGES, **TINY})
    trained: list[str] = []
    record = RunFolder.record
    monkeypatch.setattr(RunFolder, "record", lambda self, row: trained.append(str(self.path)) or record(self, row))
    result = run_sweep(table, tmp_path / "sweep", compute=LOOP)
    assert [(row.finished, row.runs) for row in result.rows] == [(1, 1)] * 4
    assert len(trained) == 2  # one round of each method
    monkeypatch.undo()
    for cell in sweep_cells(table):
        for path, recipe in cell.runs.items():
            execute(recipe, tmp_path / "single" / path, LOOP)
            assert_same_runs(tmp_path / "single" / path, tmp_path / "sweep" / path)
    assert "ccvr accuracy" in result.columns
    with (tmp_path / "sweep" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["stages"]) for row in rows][:2] == [("fedavg", "none"), ("fedavg", "ccvr")]
    assert len(fh.load_all(tmp_path / "sweep")) == 4


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    table = plan("digits", {"lr": [0.1, 0.2], **TINY})
    said: list[str] = []

    def second(text: str) -> None:
        with pytest.raises(BadInput, match="is in use: another process is running in it"):
            run_sweep(table, tmp_path, compute=LOOP, log=said.append)

    assert not run_sweep(table, tmp_path, compute=LOOP, log=second).failures
    assert said == []


def test_without_axes_it_runs_several_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["sweep", "digits", *WORDS[:-3], "--seeds", "2", "--out", str(tmp_path / "sweep")]) == 0
    accuracies = [run.accuracy for run in fh.load_all(tmp_path / "sweep")]
    assert len(accuracies) == 2
    assert f"{sum(accuracies) / 2:.2f} ± " in capsys.readouterr().out
    assert call(["sweep", str(tmp_path / "sweep/sweep.yaml"), "--out", str(tmp_path / "again"), "--dry-run"]) == 0


def test_it_goes_on_where_it_stopped_and_takes_more_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = plan("digits", {"lr": [0.1, 0.2], **TINY})
    trained: list[Path] = []
    real = run_job.train

    def stop(path: Path, recipe: Any, settings: Compute) -> None:
        trained.append(path)
        real(path, recipe, settings)
        if len(trained) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(run_job, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(table, tmp_path, seeds=2, compute=LOOP)
    said: list[str] = []
    assert not run_sweep(table, tmp_path, seeds=2, compute=LOOP, log=said.append).failures
    assert said[0] == "2 of 4 runs are finished already"
    assert len(trained) == len(set(trained)) == 4
    run_sweep(table, tmp_path, seeds=3, compute=LOOP)
    assert len(trained) == len(set(trained)) == 6


def test_a_run_that_fails_is_named_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\nimport fedhead as fh\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(fh.Method):\n    '''Fail.'''\n\n    mu: float = 0.0\n\n"
        "    def aggregate(self, server, replies, task):\n        raise KeyError('no such thing')\n"
    )
    words = ["sweep", "digits", "method=[mine.py:Mine(mu=1),fedavg]", *WORDS]
    assert call([*words, "--out", "out"]) == 1
    said = capsys.readouterr()
    assert "failed: mine.py:Mine(mu=1) model.hidden=6, seed 0: " in said.err
    last = said.err.splitlines()[-1]
    assert last.startswith("error: mine.py:Mine(mu=1) model.hidden=6, seed 0: ")
    assert last.endswith("the same command runs what failed again")
    assert "no such thing" in said.err
    assert json.loads(Path("out/table.json").read_text())["cells"][1]["finished"] == 1


def test_shards_take_every_run_once_and_fill_one_folder(tmp_path: Path) -> None:
    table = plan("digits", {"lr": [0.1, 0.2], **STAGES, **TINY})
    done: list[str] = []
    for number in (1, 2):
        before = {str(path) for path in tmp_path.rglob(RESULT)}
        result = run_sweep(table, tmp_path, shard=(number, 2), compute=LOOP)
        new = {str(path.parent.parent.name) for path in tmp_path.rglob(RESULT) if str(path) not in before}
        assert {name.rpartition("-")[0] for name in new if name.endswith("-ccvr")} == {
            name.rpartition("-")[0] for name in new if name.endswith("-none")
        }  # what trains alike is in one shard
        done += new
    assert len(done) == len(set(done)) == 4
    assert all(row.finished == 1 for row in result.rows)


def test_no_time_begins_nothing(tmp_path: Path) -> None:
    result = run_sweep(plan("digits", {"lr": [0.1, 0.2], **TINY}), tmp_path, minutes=0, compute=LOOP)
    assert (result.left, [row.finished for row in result.rows]) == (2, [0, 0])


def test_a_full_disk_stops_it_in_one_line_and_it_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "digits", "lr=[0.1,0.2]", *WORDS, "--device", "cpu", "--out", str(tmp_path / "out")]
    with faulty_files(disk_full, 40, tmp_path) as operations:
        assert call(words) == 3
    assert len(operations) > 40
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert "No space left on device" in last
    assert last.endswith("the same command goes on where it stopped")
    assert call(words) == 0
    assert [cell["finished"] for cell in json.loads((tmp_path / "out" / "table.json").read_text())["cells"]] == [1, 1]


def test_a_sweep_from_python_returns_its_runs(tmp_path: Path) -> None:
    settings = {"executor": "loop", "device": "cpu", "out": tmp_path / "out"}
    found = fh.sweep("digits", {"method": ["fedavg", "fedprox"], **TINY}, seeds=[4], **settings)
    assert [(one.recipe.method, one.recipe.seed, one.finished) for one in found] == [
        ("fedavg", 4, True),
        ("fedprox", 4, True),
    ]
    assert list(found.table["method"]) == ["fedavg", "fedprox"]
    with pytest.raises(BadInput, match="holds another sweep: method fedprox was"):
        fh.sweep("digits", {"method": ["fedavg", "moon"], **TINY}, **settings)


@pytest.mark.parametrize("wrong", [{"precision": "fp16"}, {"compile": "always"}], ids=lambda wrong: next(iter(wrong)))
def test_settings_that_no_run_can_have_are_refused_before_the_first(wrong: dict[str, Any], tmp_path: Path) -> None:
    (name,) = wrong
    with pytest.raises(fh.BadInput, match=f"unknown {name} "):
        fh.sweep("digits", {"lr": [0.1, 0.2], "rounds": 1}, out=tmp_path / "grid", device="cpu", **wrong)
    assert not (tmp_path / "grid").exists()
