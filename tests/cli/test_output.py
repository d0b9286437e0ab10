"""Progress of commands while they run: the rounds, their accuracy, and the time that is left."""

from __future__ import annotations

import dataclasses
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import listen
from rich.console import Console

from fedhead.cli import call
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.observer import Snapshot
from fedhead.loggers.tensorboard import TensorBoard
from fedhead.metrics.records import Row
from fedhead.runs import checkpoint
from fedhead.runs.progress import Progress
from fedhead.runs.run_writer import RunWriter

NOW = Snapshot(1, Tree(), {}, [])


def test_personal_accuracy_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown:
        shown.observer("fedavg", 2).round({"round": 1, "accuracy": 91.234, "personal": 80.0}, NOW)
        shown.observer("local", 2).round({"round": 1, "accuracy": None, "personal": 80.0}, NOW)
        shown.observer("local", 2).round({"round": 2, "train_loss": 0.12345}, NOW)
    assert capsys.readouterr().err.splitlines() == [
        "fedavg: round 1, accuracy 91.23 %",
        "local: round 1, personal accuracy 80.00 %",
        "local: round 2, loss 0.123",
    ]


def test_the_time_that_is_left_follows_from_the_rounds_since_resuming(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as progress:
        shown = progress.bar
        assert shown is not None
        monkeypatch.setattr(shown, "get_time", lambda: now[0])
        run = progress.observer("fedavg", 100)
        run.start("loop", dataclasses.replace(NOW, round=80))
        for number in (81, 82, 83):
            now[0] += 10.0
            run.round({"round": number}, NOW)
        [task] = shown.tasks
        assert task.completed == 83
        assert task.time_remaining == pytest.approx(170, abs=1)  # 17 rounds of 10 seconds


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C come in the third round."""
    record = RunWriter.round

    def stop(self: RunWriter, row: Row, snapshot: Snapshot) -> None:
        if snapshot.round == 3:
            raise KeyboardInterrupt
        record(self, row, snapshot)

    monkeypatch.setattr(RunWriter, "round", stop)


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_says_where_it_stopped_and_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "digits", "rounds=5", "subset=99", "clients=3", "model.hidden=[8]", "--executor", "loop"]
    assert call([*words, "--quiet"]) == 130
    shown = capsys.readouterr().err
    assert shown == (
        "stopped after round 2 of 5; go on with: fedhead run digits rounds=5 subset=99 clients=3 "
        "'model.hidden=[8]' --executor loop --quiet --out runs/digits-fedavg-seed0 --resume\n"
    )
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert call([*words, "--out", "runs/digits-fedavg-seed0", "--resume", "--quiet"]) == 0


def test_ctrl_c_between_a_checkpoint_and_the_line_of_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunWriter.round

    def stop(self: RunWriter, row: Row, snapshot: Snapshot) -> None:
        record(self, row, snapshot)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "SHARE", float("inf"))  # every round, however slow the disk is
    words = ["run", "digits", "rounds=3", "subset=99", "clients=3", "model.hidden=[8]", "--executor", "loop"]
    words += ["--out", str(tmp_path / "run")]
    for number in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(RunWriter, "round", stop)
            assert call([*words, *(["--resume"] if number > 1 else [])]) == 130
        shown = capsys.readouterr().err
        assert shown.startswith(f"stopped after round {number} of 3; go on with: fedhead run digits rounds=3 ")
        assert shown.endswith(" --resume\n")
    assert call([*words, "--resume"]) == 0
    assert "fedavg: round 2" not in capsys.readouterr().err


def test_ctrl_c_before_anything_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> Row:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedhead.runs.run.RunWriter", stop)
    assert call(["run", "digits", "--out", str(tmp_path / "run")]) == 130
    assert capsys.readouterr().err == "stopped before the first round; nothing was written\n"
    monkeypatch.setattr("fedhead.papers.tables.paper_tables.names", stop)
    assert call(["reproduce"]) == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.slow
def test_ctrl_c_on_a_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedhead", "run", "digits", "rounds=5000", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as process:
        try:
            while not (out / "checkpoint.safetensors").exists():
                assert process.poll() is None
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            _, shown = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert f"of 5000; go on with: fedhead run digits rounds=5000 --out {out} --resume" in shown.splitlines()[-1]


def test_tensorboard_that_is_missing_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert call(["run", "digits", "rounds=1", "--logger", "tensorboard", "--out", str(tmp_path / "run")]) == 2
    assert "logger tensorboard needs tensorboard: install it with pip install" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    pytest.importorskip("tensorboard", reason="an optional extra")
    TensorBoard().check(tmp_path)


QUICK = ["digits", "subset=60", "clients=2", "local_epochs=1", "model.hidden=[4]", "--device", "cpu", "--quiet"]


def test_the_traffic_of_rounds_and_stages_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", *QUICK, "rounds=2", "--executor", "loop"]
    assert call([*words, "stages=[ncm, ccvr]", "stage.ccvr.epochs=1", "--out", str(tmp_path / "staged")]) == 0
    shown = capsys.readouterr().out.splitlines()
    stages = json.loads((tmp_path / "staged/result.json").read_text())["stages"].values()
    up, down = (sum(stage[f"bytes_{way}"] for stage in stages) / 1e3 for way in ("up", "down"))
    model = (64 * 4 + 4 + 4 * 10 + 10) * 4 / 1e3  # 4 times up and down: 2 rounds of 2 clients
    text = f"{4 * model:.1f} kB up, {4 * model:.1f} kB down"
    assert f"traffic     {text} in rounds; {up:.1f} kB up, {down:.1f} kB down in stages" in shown
    assert f"            per client and round {model:.1f} kB up, {model:.1f} kB down" in shown
    assert call([*words, "--out", str(tmp_path / "plain")]) == 0
    assert f"traffic     {text}" in capsys.readouterr().out.splitlines()


def test_guarantees_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rounds=0", "privacy=[dp(epsilon=1, delta=1e-3)]"]
    assert call(["run", *QUICK, *words, "stages=[ncm]", "--out", str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    assert "privacy     stage ncm: ε = 1, δ = 0.001 per sample (add or remove one)" in shown
    assert "together" not in shown
    assert call(["run", *QUICK, *words, "stages=[ncm, ridge]", "--out", str(tmp_path / "two")]) == 0
    assert "privacy     together: ε = 1\n" in capsys.readouterr().out


def test_a_finished_run_says_that_nothing_was_left_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run")]
    finished = [f"warning: {tmp_path / 'run'} was finished already, nothing was trained"]
    for rounds, resume, warnings in ((1, [], []), (1, ["--resume"], finished), (2, ["--resume"], [])):
        assert call(["run", *QUICK, f"rounds={rounds}", "--executor", "loop", *out, *resume]) == 0
        shown = capsys.readouterr()
        assert shown.out.splitlines()[-1] == f"run         {tmp_path / 'run'}"
        assert [line for line in shown.err.splitlines() if line.startswith("warning")] == warnings


def test_an_early_end_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", *QUICK, "validation=0.2", "callbacks=[early_stopping(min_delta=100, patience=1)]"]
    out = ["--executor", "loop", "--out", str(tmp_path / "run")]
    text = "stopped     after round 2 of 4 by early_stopping"
    assert call([*words, "rounds=4", *out]) == 0
    assert text in capsys.readouterr().out.splitlines()
    assert call([*words, "rounds=6", *out, "--resume"]) == 0
    shown = capsys.readouterr()
    assert text in shown.out.splitlines()
    assert "run stopped after round 2 of 4 by early_stopping: no further round is trained" in shown.err
    assert "\nrounds: 4\n" in (tmp_path / "run/config.yaml").read_text()


def test_a_quiet_sweep_prints_its_table_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "digits", "subset=60", "clients=2", "rounds=1", "method=[fedavg, fedprox]", "--device", "cpu"]
    assert call([*words, "--quiet", "--out", str(tmp_path / "sweep")]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "fedprox" in said.out
