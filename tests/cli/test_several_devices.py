"""Tests of commands that share their runs among several devices."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedhead.cli import several_devices
from fedhead.cli.several_devices import read_devices, run_on_each
from fedhead.core.errors import BadInput, FedheadError


@pytest.mark.parametrize("text", ["", ",", "gpu", "0,x", "cuda:", "-1"])
def test_what_is_no_list_of_devices(text: str) -> None:
    with pytest.raises(BadInput, match="--devices"):
        read_devices(text)


@pytest.mark.parametrize(("given", "word"), [({"device": "cuda"}, "--device"), ({"shard": "1/2"}, "--shard")])
def test_what_the_option_already_says(given: dict[str, str], word: str) -> None:
    with pytest.raises(BadInput, match=f"leave {word} out"):
        run_on_each("0,1", **{"device": "auto", "shard": None, **given})


def test_a_process_that_fails_is_named_when_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], stdout: int) -> None:
            begun.append(command)

        def wait(self) -> int:
            return int("cuda:1" in begun[0])

    monkeypatch.setattr(several_devices.subprocess, "Popen", Process)
    monkeypatch.setattr(sys, "argv", ["fedhead", "sweep", "a.yaml", "--devices", "1,0"])
    with pytest.raises(FedheadError, match=r"the process of cuda:1 failed"):
        run_on_each("1,0", device="auto", shard=None)
    heads = [
        ["sweep", "a.yaml", "--device", "cuda:1", "--claims"],
        ["sweep", "a.yaml", "--device", "cuda:0", "--claims"],
    ]
    assert [command[3:-1] for command in begun] == heads
    assert begun[0][-1] == begun[1][-1], "processes that share their runs know each other's claims"


@pytest.mark.long
@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_two_processes_share_the_runs(tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    arguments = {
        "sweep": ["digits", "method=[fedavg,fedprox]", "rounds=1", "clients=3", "subset=120", "--seeds", "2"],
        "reproduce": ["ccvr/table1", "--scale", "small", "--cells", "clsprox", "--seeds", "1", "rounds=1"],
    }[command]
    arguments += ["--out", str(out), "--executor", "loop", "--devices", "cpu,cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "fedhead.cli", command, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (2 if command == "sweep" else 3)
    assert len(list(out.rglob("result.json"))) == (4 if command == "sweep" else 3)  # nothing twice, nothing left
    assert done.stdout.count("written") <= 1  # one table, by the first process
