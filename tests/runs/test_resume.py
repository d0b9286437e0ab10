"""A run that is stopped at any moment and resumed ends as the uninterrupted one: same metrics, same weights."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from simulations import RowFunction
from tiers import quick

from fedhead.core.system.errors import BadInput
from fedhead.core.tree.treefile import load_tree
from fedhead.loggers.tensorboard import TensorBoard
from fedhead.recipes.recipe import load
from fedhead.runs.folder_lock import LOCK
from fedhead.runs.run import Compute, execute
from fedhead.runs.run_folder import RunFolder
from fedhead.runs.run_folder_schema import CHECKPOINT, METRICS, STAGE_STATES

SMALL = [
    "rounds=4",
    "local_epochs=1",
    "model.hidden=[16]",
    "clients=6",
    "participation=0.5",
    "client_test=0.2",
    "subset=400",
]


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [without_seconds(json.loads(line)) for line in (folder / METRICS).read_text().splitlines()]


def without_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k != "seconds"}


def assert_same(one: Path, other: Path) -> None:
    assert metrics(one) == metrics(other)
    for file in (CHECKPOINT, STAGE_STATES):
        assert (one / file).exists() == (other / file).exists()
        if (one / file).exists():
            (a, said_a), (b, said_b) = load_tree(one / file), load_tree(other / file)
            assert said_a == said_b
            assert list(a.leaves()) == list(b.leaves())
            for name, tensor in a.leaves().items():
                assert torch.equal(tensor, b.leaves()[name]), name
    results = [RunFolder.open(folder).result() for folder in (one, other)]
    assert results[0] is not None
    assert results[1] is not None
    for name in ("accuracy", "personal", "bytes_up", "bytes_down"):
        assert results[0][name] == results[1][name]
    stages = [[without_seconds(row) for row in result["stages"].values()] for result in results if result is not None]
    assert stages[0] == stages[1]


class Stopped(BaseException):
    """Stands for a kill: nothing on the way catches it."""


STOPPED = {
    "scaffold": [],
    "feddyn": ["optimizer=adam", "momentum=0", "persistent_optimizer=true"],
    "moon": ["persistent_optimizer=true", "lr_decay=0.9"],
    "fedavgm": [
        "stages=[ccvr]",
        "stage.ccvr.samples=20",
        "stage.ccvr.epochs=1",
        "model.norm=batch",
        "freeze=[extractor]",
    ],
    "local": ["evaluate_every=3", "last_rounds=2"],
}


@pytest.mark.parametrize("method", quick(STOPPED, "scaffold", "fedavgm"))
@pytest.mark.parametrize("executor", quick(["loop", "stack"], "loop"))
def test_stopped_after_any_round(tmp_path: Path, method: str, executor: str) -> None:
    recipe = load("digits", [*SMALL, f"method={method}", *STOPPED[method]])
    settings = Compute(executor=executor)
    execute(recipe, tmp_path / "whole", settings)
    for stop in (1, 3, 4):

        def interrupt(row: dict[str, Any], stop: int = stop) -> None:
            if row["round"] == stop:
                raise Stopped

        folder = tmp_path / f"stopped{stop}"
        with pytest.raises(Stopped):
            execute(recipe, folder, settings, observers=[RowFunction(interrupt)])
        assert not RunFolder.open(folder).finished
        execute(recipe, folder, resume=True)  # with the executor that the folder names
        assert_same(tmp_path / "whole", folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["method=scaffold", "persistent_optimizer=true", "lr_decay=0.9", "evaluate_every=3", "last_rounds=2"],
        ["method=fedavgm", "stages=[ccvr]", "stage.ccvr.samples=20", "stage.ccvr.epochs=1", "model.norm=batch"],
    ],
    ids=lambda words: words[0].partition("=")[2],
)
def test_more_rounds_end_as_a_run_that_had_them_from_the_start(tmp_path: Path, words: list[str]) -> None:
    recipe = load("digits", [*SMALL, *words])
    longer = recipe.override(["rounds=6", f"stages=[{', '.join([*recipe.stages, 'finetune'])}]"])
    execute(longer, tmp_path / "whole", Compute(executor="loop"))
    execute(recipe, tmp_path / "run", Compute(executor="loop"))
    execute(longer, tmp_path / "run", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")
    results = [RunFolder.open(tmp_path / name).result() or {} for name in ("whole", "run")]
    assert results[0]["accuracy_mean"] == results[1]["accuracy_mean"]
    folder = RunFolder.open(tmp_path / "run")
    assert folder.recipe == longer
    assert folder.environment()["extended"][0]["rounds"] == [4, 6]


@pytest.mark.slow
def test_killed_while_rounds_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load("digits", SMALL)
    longer = recipe.override(["rounds=5"])
    execute(longer, tmp_path / "whole", Compute(executor="loop"))
    execute(recipe, tmp_path / "run", Compute(executor="loop"))
    write = RunFolder._write

    def killed(self: RunFolder, name: str, text: str) -> None:
        if name == "config.yaml":
            raise Stopped
        write(self, name, text)

    monkeypatch.setattr(RunFolder, "_write", killed)
    with pytest.raises(Stopped):
        execute(longer, tmp_path / "run", resume=True)
    monkeypatch.undo()
    execute(longer, tmp_path / "run", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "run")
    assert len(RunFolder.open(tmp_path / "run").environment()["extended"]) == 1


def test_stopped_before_the_first_checkpoint(tmp_path: Path) -> None:
    recipe = load("digits", SMALL)
    execute(recipe, tmp_path / "whole", Compute(executor="loop"))
    folder = RunFolder.create(tmp_path / "early", recipe)
    execute(recipe, folder.path, Compute(executor="loop"), resume=True)
    assert_same(tmp_path / "whole", folder.path)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    recipe = load("digits", SMALL)
    first = execute(recipe, tmp_path / "run", Compute(executor="loop"))
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    assert execute(recipe, tmp_path / "run", resume=True) == first
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_resuming_otherwise_than_begun_is_refused(tmp_path: Path) -> None:
    recipe = load("digits", SMALL)

    def interrupt(row: dict[str, Any]) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "run", Compute(executor="loop"), observers=[RowFunction(interrupt)])
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(BadInput, match="begun with executor loop"):
        execute(recipe, tmp_path / "run", Compute(executor="stack"), resume=True)
    with pytest.raises(BadInput, match="begun with precision fp32"):
        execute(recipe, tmp_path / "run", Compute(precision="bf16"), resume=True)
    with pytest.raises(BadInput, match=r"lr was 0\.05 and is now 0\.5"):
        execute(recipe.override(["lr=0.5"]), tmp_path / "run", resume=True)
    with pytest.raises(BadInput, match="unfinished run"):
        execute(recipe, tmp_path / "run")
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


READS = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Reads(fh.Method):
    def loss(self, w, batch, client):
        found = super().loss(w, batch, client)
        return found * (2.0 if found.item() > 1 else 1.0)
"""


@pytest.mark.slow
def test_a_run_that_no_stack_takes_may_go_on_with_another_executor(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(READS)
    words = ["subset=60", "rounds=1", "local_epochs=1", "clients=2", "model=mlp(hidden=[4])"]
    recipe = load("digits", [*words, f"method={tmp_path}/reads.py:Reads"])
    for executor in ("loop", "auto"):
        with pytest.raises(BadInput, match="use executor=loop"):
            execute(recipe, tmp_path / executor, Compute(executor="stack"), resume=True)
        assert execute(recipe, tmp_path / executor, Compute(executor=executor), resume=True)["accuracy"]
        assert RunFolder.open(tmp_path / executor).environment()["executor"] == "loop"


def test_the_board_shows_the_same_curve_after_resuming(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="an optional extra")
    recipe = load("digits", SMALL)
    settings = Compute(executor="loop")

    def interrupt(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        execute(recipe, tmp_path / "run", settings, loggers=[TensorBoard()], observers=[RowFunction(interrupt)])
    execute(recipe, tmp_path / "run", settings, loggers=[TensorBoard()], resume=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    curve = [(e.step, e.value) for e in events.Scalars("accuracy")]
    assert [step for step, _ in curve] == [1, 2, 3, 4]
    assert [v for _, v in curve] == pytest.approx([row["accuracy"] for row in metrics(tmp_path / "run")])


def start(folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "fedhead",
        "run",
        "digits",
        *words,
        "--out",
        str(folder),
        "--resume",
        "--quiet",
    ]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def lines(folder: Path) -> int:
    return (folder / METRICS).read_bytes().count(b"\n") if (folder / METRICS).exists() else 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_with_signal_9_again_and_again(tmp_path: Path) -> None:
    words = [
        "rounds=16",
        "local_epochs=2",
        "method=scaffold",
        "momentum=0",  # with it, control variates overcorrect and the run diverges
        "participation=0.5",
        "client_test=0.2",
    ]
    killed, kills = tmp_path / "killed", 0
    for wanted in (1, 6, 12):
        process = start(killed, words)
        begun = time.monotonic()
        while process.poll() is None and lines(killed) < wanted and time.monotonic() - begun < 300:
            time.sleep(0.002)
        time.sleep(0.003 * wanted)  # into the middle of something
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills >= 2
    last = start(killed, words)
    _, said = last.communicate(timeout=300)
    assert last.returncode == 0, said
    chosen = RunFolder.open(killed).environment()["executor"]
    whole = tmp_path / "whole"
    uninterrupted = start(whole, [*words, "--executor", chosen])
    _, said = uninterrupted.communicate(timeout=300)
    assert uninterrupted.returncode == 0, said
    assert_same(whole, killed)
    assert [p.name for p in killed.iterdir() if p.name.startswith(".")] == [LOCK]  # no drafts are left behind
