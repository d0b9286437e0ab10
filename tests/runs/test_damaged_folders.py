"""A damaged run folder is the failure of one run: the others are run, and the error says what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_table import CPU, tiny

from fedhead.core.system.errors import BadInput
from fedhead.papers.tables.reproduce import reproduce
from fedhead.recipes.recipe import load
from fedhead.runs.reopen import reopen
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, CONFIG, ENVIRONMENT, RESULT
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan

AGAIN = "put the run's own file back, or delete its folder and run it again"


def spoil(name: str) -> Callable[[Path], object]:
    return lambda run: [path.write_text("{") for path in run.glob(name)]


def runs_of(out: Path) -> list[Path]:
    return sorted(path.parent for path in out.rglob(CONFIG))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        (spoil(CONFIG), AGAIN),
        (spoil(ENVIRONMENT), AGAIN),
        (spoil(RESULT), "delete it: the run then goes on from its checkpoint and writes it again"),
    ],
    ids=["config", "environment", "result"],
)
def test_the_other_runs_of_a_table_are_run(tmp_path: Path, damage: Callable[[Path], object], advice: str) -> None:
    pick = ["mild fedavg ccvr"]
    reproduce(tiny(), tmp_path, pick=pick, seeds=1, settings=CPU)
    (run,) = (path for path in runs_of(tmp_path) if "ccvr" in str(path.relative_to(tmp_path)))
    damage(run)
    for table in tmp_path.glob("table.*"):
        table.unlink()
    found = reproduce(tiny(), tmp_path, pick=["mild ccvr"], seeds=1, settings=CPU)
    assert [cell.mean is None for cell in found.cells] == [True, False]
    (reason,) = found.failures.values()
    assert str(run) in reason
    assert reason.endswith(advice)
    shutil.rmtree(run)
    again = reproduce(tiny(), tmp_path, pick=["mild ccvr"], seeds=1, settings=CPU)
    assert (all(cell.mean is not None for cell in again.cells), again.failures) == (True, {})


def test_stages_do_not_begin_from_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    pick = ["mild fedavg", "hard fedavg"]
    first = reproduce(tiny(), tmp_path, pick=pick, seeds=1, settings=CPU)
    trainings = [path for path in runs_of(tmp_path) if "ccvr" not in path.parent.name]
    (stage, _), (other, one) = (path for path in runs_of(tmp_path) if path not in trainings), trainings
    shutil.copyfile(one / CHECKPOINT, other / CHECKPOINT)
    shutil.rmtree(stage)
    again = reproduce(tiny(), tmp_path, pick=pick, seeds=1, settings=CPU)
    assert [cell.values for cell in again.cells] == [cell.values for cell in first.cells]


@pytest.mark.slow
def test_the_other_runs_of_a_sweep_are_run(tmp_path: Path) -> None:
    keys = {"method": ["fedavg", "fedprox"], "rounds": 2, "clients": 3, "subset": 120}
    table = plan("digits", keys)
    run_sweep(table, tmp_path, settings=CPU)
    first, second = runs_of(tmp_path)
    for name in (CONFIG, RESULT):
        kept = (first / name).read_text()
        (first / name).write_text("{")
        (second / RESULT).unlink()
        found = run_sweep(table, tmp_path, settings=CPU)
        assert len(found.failures) == 1, name
        assert RunFolder.open(second).finished
        (first / name).write_text(kept)


def test_a_finished_run_without_its_checkpoint_is_not_told_to_go_on(tmp_path: Path) -> None:
    execute(load("digits", ["rounds=1", "clients=2", "subset=60"]), tmp_path / "run", CPU)
    (tmp_path / "run" / CHECKPOINT).unlink()
    with pytest.raises(BadInput, match=f"is finished and has no {CHECKPOINT} any more; {AGAIN}"):
        reopen(tmp_path / "run")
