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
from typing import Any

import pytest

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
