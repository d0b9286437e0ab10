"""The shared engine: runs that train at once end as those that train one after another."""

from __future__ import annotations

from pathlib import Path

import pytest
from same_runs import assert_same_runs
from tiny_table import rows, tiny

import fedhead as fh
from fedhead.cli import call
from fedhead.engine.experiment.compute import Compute
from fedhead.executors.stack import shared_stack
from fedhead.papers.tables.reproduce import reproduce
from fedhead.runs import environment
from fedhead.studies.engines import SharedEngine
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan
from fedhead.studies.sweep.sweep_runs import sweep_cells

STACK = Compute(executor="stack", device="cpu")
TINY = {"clients": 3, "local_epochs": 1, "model.hidden": [[6]]}  # subsets would differ by seed, and not be joined
AXES = {"method": ["fedavg", "scaffold"], "partition": ["dirichlet(0.1)", "dirichlet(0.5)"], **TINY, "rounds": 3}


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_commit", lambda: None)  # asking git takes longer than these runs


@pytest.mark.slow
def test_runs_end_as_those_of_the_local_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, merged = plan("digits", AXES), []
    merge = shared_stack.merge_jobs
    monkeypatch.setattr(shared_stack, "merge_jobs", lambda jobs: merged.append(len(jobs)) or merge(jobs))
    run_sweep(table, tmp_path / "local", seeds=2, compute=STACK)
    result = run_sweep(table, tmp_path / "shared", seeds=2, compute=STACK, engine=SharedEngine())
    assert [(row.finished, row.runs) for row in result.rows] == [(2, 2)] * 4
    assert merged == [4, 4] * 3  # a stack per method and round, of two partitions and seeds
    for cell in sweep_cells(table, 2):
        for path in cell.runs:
            assert_same_runs(tmp_path / "local" / path, tmp_path / "shared" / path)


def test_a_run_that_fails_is_named_and_the_others_end(tmp_path: Path) -> None:
    axes = {**AXES, "method": "fedavg", "partition": "dirichlet(0.5)", "lr": [0.01, 1e30]}
    result = run_sweep(plan("digits", axes), tmp_path, compute=STACK, engine=SharedEngine())
    assert [row.finished for row in result.rows] == [1, 0]
    assert list(result.failures) == ["lr=1e+30 model.hidden=6, seed 0"]


@pytest.mark.slow
def test_a_sweep_that_was_stopped_goes_on(tmp_path: Path) -> None:
    whole, part = plan("digits", AXES), plan("digits", AXES)
    run_sweep(part, tmp_path / "shared", seeds=1, compute=STACK, engine=SharedEngine())
    assert call(["sweep", str(tmp_path / "shared" / "sweep.yaml"), "--seeds", "2", "--dry-run"]) == 0
    run_sweep(whole, tmp_path / "shared", seeds=2, compute=STACK, engine=SharedEngine())
    run_sweep(whole, tmp_path / "local", seeds=2, compute=STACK)
    for cell in sweep_cells(whole, 2):
        for path in cell.runs:
            assert_same_runs(tmp_path / "local" / path, tmp_path / "shared" / path)


@pytest.mark.slow
def test_rows_of_a_table_say_how_many_runs_shared_their_time(tmp_path: Path) -> None:
    result = reproduce(tiny(), tmp_path, compute=Compute(device="cpu"), results=tmp_path, engine=SharedEngine())
    assert not result.failures
    assert {row["together"] for row in rows(tmp_path)} == {"8"}  # two methods on two partitions, two seeds each
    entered = sorted((row["cell"], row["seed"], row["training_seconds"]) for row in rows(tmp_path))
    (tmp_path / "results.csv").unlink()
    reproduce(tiny(), tmp_path, compute=Compute(device="cpu"), results=tmp_path)  # enters the runs that are there
    assert {row["together"] for row in rows(tmp_path)} == {"8"}
    assert sorted((row["cell"], row["seed"], row["training_seconds"]) for row in rows(tmp_path)) == entered


def test_an_executor_that_is_no_stack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["sweep", "digits", "lr=[0.1,0.2]", "--engine", "shared", "--executor", "loop", "--device", "cpu"]) == 2
    assert "engine shared trains in stacks: leave executor 'loop' out" in capsys.readouterr().err
    with pytest.raises(fh.BadInput, match="give 'local' or 'shared'"):
        fh.sweep("digits", {"lr": [0.1]}, engine="threads")  # type: ignore[arg-type]
