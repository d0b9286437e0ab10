"""A damaged run folder is the failure of one run: the others are run, and the error says what to do."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_table import CPU, tiny

from fedhead.api.load import load as load_result
from fedhead.core.system.errors import BadInput
from fedhead.papers.tables.reproduce import reproduce
from fedhead.recipes.recipe import load
from fedhead.runs.reopen import reopen
from fedhead.runs.run import execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import (
    CHECKPOINT,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    PARTITION,
    RESULT,
    STAGE_STATES,
    DamagedRun,
)
from fedhead.studies.sweep.sweep import run_sweep
from fedhead.studies.sweep.sweep_file import plan

AGAIN = "put the run's own file back, or delete its folder and run it again"
RESULT_ADVICE = "delete it: the run then goes on from its checkpoint and writes it again"
EDITS: list[dict[str, Any]] = [
    {"accuracy": "x"},
    {"accuracy": ...},
    {"stages": ...},
    {"stages": {}},
    {"stages": {"ncm": 3}},
    {"stages": {"ncm": {}}},
]


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
        (spoil(RESULT), RESULT_ADVICE),
    ],
    ids=["config", "environment", "result"],
)
def test_the_other_runs_of_a_table_are_run(tmp_path: Path, damage: Callable[[Path], object], advice: str) -> None:
    pick = ["mild fedavg ccvr"]
    reproduce(tiny(), tmp_path, pick=pick, seeds=1, compute=CPU)
    (run,) = (path for path in runs_of(tmp_path) if "ccvr" in str(path.relative_to(tmp_path)))
    damage(run)
    for table in tmp_path.glob("table.*"):
        table.unlink()
    found = reproduce(tiny(), tmp_path, pick=["mild ccvr"], seeds=1, compute=CPU)
    assert [cell.mean is None for cell in found.cells] == [True, False]
    (reason,) = found.failures.values()
    assert str(run) in reason
    assert reason.endswith(advice)
    shutil.rmtree(run)
    again = reproduce(tiny(), tmp_path, pick=["mild ccvr"], seeds=1, compute=CPU)
    assert (all(cell.mean is not None for cell in again.cells), again.failures) == (True, {})


def test_stages_do_not_begin_from_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    pick = ["mild fedavg", "hard fedavg"]
    first = reproduce(tiny(), tmp_path, pick=pick, seeds=1, compute=CPU)
    trainings = [path for path in runs_of(tmp_path) if "ccvr" not in path.parent.name]
    (stage, _), (other, one) = (path for path in runs_of(tmp_path) if path not in trainings), trainings
    shutil.copyfile(one / CHECKPOINT, other / CHECKPOINT)
    shutil.rmtree(stage)
    again = reproduce(tiny(), tmp_path, pick=pick, seeds=1, compute=CPU)
    assert [cell.values for cell in again.cells] == [cell.values for cell in first.cells]


@pytest.mark.slow
def test_the_other_runs_of_a_sweep_are_run(tmp_path: Path) -> None:
    keys = {"method": ["fedavg", "fedprox"], "rounds": 2, "clients": 3, "subset": 120}
    table = plan("digits", keys)
    run_sweep(table, tmp_path, compute=CPU)
    first, second = runs_of(tmp_path)
    for name in (CONFIG, RESULT):
        kept = (first / name).read_text()
        (first / name).write_text("{")
        (second / RESULT).unlink()
        found = run_sweep(table, tmp_path, compute=CPU)
        assert len(found.failures) == 1, name
        assert RunFolder.open(second).finished
        (first / name).write_text(kept)


def test_a_finished_run_without_its_checkpoint_is_not_told_to_go_on(tmp_path: Path) -> None:
    execute(load("digits", ["rounds=1", "clients=2", "subset=60"]), tmp_path / "run", CPU)
    (tmp_path / "run" / CHECKPOINT).unlink()
    with pytest.raises(BadInput, match=f"is finished and has no {CHECKPOINT} any more; {AGAIN}"):
        reopen(tmp_path / "run")


def without(content: bytes) -> None:
    return None


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def garbled(content: bytes) -> bytes:
    return b"\x00\xff{" + content[8:]


def edited(changes: dict[str, Any]) -> Callable[[bytes], bytes]:
    """Return a change of a JSON object's entries; ... deletes an entry."""

    def change(content: bytes) -> bytes:
        entries = {**json.loads(content), **changes}
        return json.dumps({name: value for name, value in entries.items() if value is not ...}).encode()

    return change


def counts_of_another_type(content: bytes) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{**np.load(io.BytesIO(content)), "counts": np.zeros(2, [("a", "<i4"), ("b", "<f8")])})
    return file.getvalue()


SPLIT_ADVICE = "put the run's own file back, or delete it: the run is read without it, and resuming it writes it again"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    execute(load("digits", ["rounds=2", "clients=2", "subset=60", "stages=[ncm]"]), path, CPU)
    return path


@pytest.mark.parametrize(
    ("name", "change", "said", "advice"),
    [
        (CONFIG, half, "was cut: it lacks the key", AGAIN),
        (CONFIG, garbled, "can't be read", AGAIN),
        (ENVIRONMENT, without, "is missing", AGAIN),
        (ENVIRONMENT, half, "can't be read", AGAIN),
        (METRICS, without, "holds 0 of 2 rounds, though the run is finished", AGAIN),
        (METRICS, half, "holds 1 of 2 rounds, though the run is finished", AGAIN),
        (METRICS, garbled, "can't be read", AGAIN),
        (METRICS, lambda rows: rows.replace(b'"seconds"', b'"second"'), "line 1 lacks seconds as a number", AGAIN),
        (PARTITION, half, "can't be read: it was cut", SPLIT_ADVICE),
        (PARTITION, garbled, "can't be read: it was cut", SPLIT_ADVICE),
        (PARTITION, counts_of_another_type, "can't be read: it was cut", SPLIT_ADVICE),
        (RESULT, half, "can't be read", RESULT_ADVICE),
        *((RESULT, edited(change), "lacks an accuracy or the record of a stage", RESULT_ADVICE) for change in EDITS),
        (CHECKPOINT, half, "can't be read", AGAIN),
        (STAGE_STATES, half, "can't be read", AGAIN),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(
    trained: Path, tmp_path: Path, name: str, change: Callable[[bytes], bytes | None], said: str, advice: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    content = change((run / name).read_bytes())
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    with pytest.raises(DamagedRun) as error:
        load_result(run).module(stage="ncm")
    text = str(error.value)
    assert text.replace(", line", " line").startswith(f"{run / name} {said}")
    assert text.endswith(f"; {advice}")
    assert "\n" not in text


def test_a_stage_without_its_state_is_told_how_to_get_it(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / STAGE_STATES).unlink()
    result = load_result(run)
    with pytest.raises(BadInput, match=r"no state after ncm.*result\.calibrate\('ncm'\), or resume the run"):
        result.module(stage="ncm")
    assert result.calibrate("ncm").accuracy == result.stage_rows["ncm"]["accuracy"]
