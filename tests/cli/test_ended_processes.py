"""Commands that a signal ends, or one of their processes: nothing goes on alone, and the user is told what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedhead.cli import call
from fedhead.cli.output import raise_failures
from fedhead.core.system.errors import FedheadError
from fedhead.studies import devices as several_devices
from fedhead.studies.devices import on_each

SMALL = ["clients=3", "subset=120", "--executor", "loop"]
ENDLESS = ["digits", "rounds=100000", *SMALL]
SWEEP = ["sweep", *ENDLESS, "method=[fedavg,fedprox]"]


@contextmanager
def begun(words: list[str], out: Path, runs: int) -> Iterator[subprocess.Popen[str]]:
    """A command whose runs have begun; those that are left of it are ended."""
    command = [sys.executable, "-m", "fedhead", *words, "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    # in its own session, so that all processes can be ended below
    with subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes) as process:
        try:
            deadline = time.monotonic() + 120
            while len(list(out.rglob("metrics.jsonl"))) < runs and time.monotonic() < deadline:
                time.sleep(0.05)
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_processes_end_after_the_one_that_started_them_was_killed(tmp_path: Path) -> None:
    with begun([*SWEEP, "--devices", "cpu,cpu"], tmp_path / "out", 2) as process:
        process.kill()
        process.communicate(timeout=30)  # to the end of the last process that may write


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "runs", "says"),
    [
        (["run", *ENDLESS], 1, "go on with: fedhead run digits"),
        ([*SWEEP, "--devices", "cpu,cpu"], 2, "stopped; the same command goes on where it stopped\n"),
    ],
)
def test_sigterm_is_answered_as_ctrl_c_is(tmp_path: Path, words: list[str], runs: int, says: str) -> None:
    with begun(words, tmp_path / "out", runs) as process:
        process.terminate()
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert says in said
    assert sum(line.startswith("stopped") for line in said.splitlines()) == 1, said
    assert "Traceback" not in said


def killed(monkeypatch: pytest.MonkeyPatch, finish: bool) -> None:
    """Let the first of a command's processes be killed, perhaps when all runs are finished."""

    class Process:
        def __init__(self, line: list[str], stdout: int, env: dict[str, str]) -> None:
            self.code = -signal.SIGKILL if line[line.index("--device") + 1] == "cuda:0" else 0
            if finish and self.code == 0:
                assert call([*line[3 : line.index("--device")], "--device", "cpu", *line[-2:]]) == 0

        def wait(self) -> int:
            return self.code

    monkeypatch.setattr(several_devices, "subprocess", SimpleNamespace(Popen=Process, DEVNULL=subprocess.DEVNULL))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)


@pytest.mark.slow
@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_a_process_that_was_killed_matters_where_runs_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, finish: bool
) -> None:
    killed(monkeypatch, finish)
    monkeypatch.chdir(tmp_path)
    words = {
        "sweep": ["sweep", "digits", "method=[fedavg,fedprox]", "rounds=1", *SMALL],
        "reproduce": ["reproduce", "ccvr/table1", "--scale", "small", "--cells", "clsprox digits-for-cifar10-0.5"],
    }[command]
    words += [] if command == "sweep" else ["--seeds", "1", "rounds=1", "--executor", "loop"]
    words += ["--devices", "0,cpu", "--out", "out"]
    monkeypatch.setattr(sys, "argv", ["fedhead", *words])
    assert call(words) == (0 if finish else 1)
    *_, last = capsys.readouterr().err.splitlines()
    ending = "--devices: the process of cuda:0 was ended by signal 9, perhaps for lack of memory; "
    if finish:
        assert last == f"warning: {ending}no run is missing in the table"
    else:
        left = "2 runs are" if command == "sweep" else "1 run is"
        assert last == f"error: {ending}{left} left; the same command goes on where it stopped"


def test_another_signal_says_nothing_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FedheadError) as caught:
        raise_failures({"a, seed 0": "no loss"}, ["the process of cpu was ended by signal 11"], 1)
    assert str(caught.value).startswith("a, seed 0: no loss; the process of cpu was ended by signal 11; fix it")

    class Process:
        def __init__(self, line: list[str], stdout: int, env: dict[str, str]) -> None: ...

        def wait(self) -> int:
            return -signal.SIGSEGV

    monkeypatch.setattr(several_devices, "subprocess", SimpleNamespace(Popen=Process, DEVNULL=subprocess.DEVNULL))
    with on_each(["cpu"], None) as (_, broken):
        assert broken == ["the process of cpu was ended by signal 11"]
