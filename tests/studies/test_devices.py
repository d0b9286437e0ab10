"""Tests of commands that share their runs among several devices."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import pytest
from commands import listen

from fedhead.cli import call
from fedhead.core.system.errors import BadInput
from fedhead.papers.tables import paper_tables as tables
from fedhead.studies.devices import _Worker, engine_for, read_devices, threads_per_process
from fedhead.studies.engines import LocalEngine


@pytest.mark.parametrize("text", ["", ",", "gpu", "0,x", "cuda:", "-1"])
def test_what_is_no_list_of_devices(text: str) -> None:
    with pytest.raises(BadInput, match="--devices"):
        read_devices(text)


def test_what_the_option_already_says() -> None:
    with pytest.raises(BadInput, match="leave --device out"):
        engine_for("local", "0,1", "cuda")


@pytest.mark.parametrize(
    ("count", "says"), [(0, "no GPU 7; torch sees none"), (2, "no GPU 7; torch sees 2, numbered from 0")]
)
def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, count: int, says: str) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    with pytest.raises(BadInput, match=f"--devices cpu,7: there is {says}"):
        read_devices("cpu,7")
    assert read_devices("cpu,cpu") == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (["cuda:0"] * 5, {}, 3),
        (["cuda:0", "cuda:1"], {}, 8),
        (["cuda:0"] * 40, {}, 1),
        (["cuda:0", "cuda:0"], {"OMP_NUM_THREADS": "16"}, None),
        (["cpu", "cpu"], {}, None),
    ],
)
def test_processes_on_gpus_share_the_threads_of_the_host(
    monkeypatch: pytest.MonkeyPatch, names: list[str], given: dict[str, str], expected: int | None
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 16)
    monkeypatch.setattr(os, "environ", given)
    assert threads_per_process(names) == expected


@pytest.mark.long
@pytest.mark.parametrize("engine", ["local", "shared"])
@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_two_processes_share_the_runs(tmp_path: Path, command: str, engine: str) -> None:
    out = tmp_path / "out"
    arguments = {
        "sweep": ["digits", "method=[fedavg,fedprox]", "rounds=1", "clients=3", "subset=120", "--seeds", "2"],
        "reproduce": ["ccvr/table1", "--scale", "small", "--cells", "clsprox", "--seeds", "1", "rounds=1"],
    }[command]
    arguments += ["--out", str(out), "--executor", "loop" if engine == "local" else "stack", "--devices", "cpu,cpu"]
    arguments += ["--engine", engine]
    done = subprocess.run(
        [sys.executable, "-m", "fedhead", command, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with (out / ("table.csv" if command == "sweep" else "table-rounds=1.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == (2 if command == "sweep" else 3)
    column = "finished" if command == "sweep" else "ours"
    assert all(float(row[column]) > 0 for row in rows), "the table holds what the processes measured"
    assert len(list(out.rglob("result.json"))) == (4 if command == "sweep" else 3)  # nothing twice, nothing left
    assert done.stdout.count("written") <= 1  # one table, by the first process


@pytest.mark.parametrize(("option", "what"), [("--results", "results"), ("--out", "runs")])
def test_a_folder_that_can_t_be_written_is_refused_before_a_process_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    words = ["reproduce", "ccvr/table1", "--scale", "small", "--cells", "clsprox", "--devices", "cpu,cpu"]
    assert call([*words, option, "file"]) == 2
    said = capsys.readouterr()
    assert said.err == f"error: file can't keep {what}: it is no folder; select another folder with {option}\n"
    assert said.out == ""
    assert not list(tmp_path.rglob("table.*"))


OWN = """
import errno, os, signal
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Raises(fh.Method):
    'FedAvg that fails for some values of its parameter.'
    a: int = 0
    def loss(self, w, batch, client):
        if self.a == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.a == 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.a in (1, 2):
            raise ValueError(f"no loss for a={self.a}")
        return super().loss(w, batch, client)
"""
TABLE = """# A table of four cells
paper: own
table: 1
seeds: {full: 1}
base: {dataset: digits, method: "own.py:Raises", rounds: 1, clients: 3, subset: 120}
axes:
  a: {one: {set: {method.a: 1}}, two: {set: {method.a: 2}}, three: {set: {method.a: 3}}, four: {set: {method.a: 4}}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sweep", "reproduce"])
def test_runs_that_fail_do_not_stop_the_others_and_are_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "load", lambda name: tables.parse(name, TABLE))
    (tmp_path / "own.py").write_text(OWN)
    arguments = {
        "sweep": ["sweep", "digits", "method=own.py:Raises", "method.a=[1,2,3,4]", "rounds=1", "subset=120"],
        "reproduce": ["reproduce", "own/table1"],
    }[command]
    assert call([*arguments, "--out", "out", "--executor", "loop", "--devices", "cpu,cpu"]) == 1
    said = capsys.readouterr()
    assert len(list((tmp_path / "out").rglob("result.json"))) == 2, "the others are run though the first one fails"
    *_, last = said.err.splitlines()
    first = {"sweep": "a=[12], seed 0", "reproduce": "(one|two), seed 0"}[command]
    reason = r"Raises.loss \(own.py, line 16\): ValueError: no loss for a=[12] \(1 more failed\)"
    assert re.match(f"error: {first}: {reason}", last)
    assert said.out.count("written to") == 1
    failures = json.loads((tmp_path / "out" / "table.json").read_text())["failures"]
    assert sorted(reason[-1] for reason in failures.values()) == ["1", "2"]
    assert "the time is up" not in said.err + said.out
    assert said.err.count("error: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "shared"])
def test_the_runs_of_a_process_that_was_killed_fail_and_another_process_runs_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["sweep", "digits", "method=own.py:Raises", "method.a=[9,3,4]", "rounds=1", "subset=120", "--out", "out"]
    assert call([*words, "--devices", "cpu", "--engine", engine]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    reason = "the process of cpu was killed, perhaps for lack of memory"
    more = "" if engine == "local" else " (2 more failed)"  # all were begun at once
    assert last == f"error: a=9, seed 0: {reason}{more}; fix it, and the same command runs what failed again"
    assert len(list((tmp_path / "out").rglob("result.json"))) == (2 if engine == "local" else 0)


@pytest.mark.slow
def test_a_process_that_died_between_two_jobs_is_started_again() -> None:
    worker = _Worker("cpu", LocalEngine(), None)
    try:
        assert worker.submit([]).result() == {}
        assert worker._pool is not None
        with pytest.raises(BrokenProcessPool):
            worker._pool.submit(signal.raise_signal, signal.SIGKILL).result()
        assert worker.submit([]).result() == {}
    finally:
        worker.close()


@pytest.mark.slow
def test_a_full_disk_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["sweep", "digits", "method=own.py:Raises", "method.a=[8,3,4]", "rounds=1", "subset=120", "--out", "out"]
    assert call([*words, "--executor", "loop", "--devices", "cpu"]) == 3
    *_, last = capsys.readouterr().err.splitlines()
    assert last.endswith("No space left on device; the same command goes on where it stopped")
    assert not list((tmp_path / "out").rglob("result.json"))


@pytest.mark.slow
def test_a_run_that_fails_later_does_not_stop_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables, "load", lambda name: tables.parse(name, TABLE.replace("one: {", "zero: {}, one: {")))
    (tmp_path / "own.py").write_text(OWN)
    assert call(["reproduce", "own/table1", "--executor", "loop", "--json"]) == 1
    said = capsys.readouterr()
    table = json.loads(said.out)
    assert [cell["mean"] is not None for cell in table["cells"]] == [True, False, False, True, True]
    assert (table["left"], list(table["failures"])) == (2, ["one, seed 0", "two, seed 0"])
    assert "error: one, seed 0: Raises.loss (own.py, line 16): ValueError: no loss for a=1 (1 more failed)" in said.err
    assert "the time is up" not in said.err


@pytest.mark.long
def test_ctrl_c_is_answered_once_and_ends_all_processes(tmp_path: Path) -> None:
    words = ["sweep", "digits", "method=[fedavg,fedprox]", "rounds=100000", "clients=3", "subset=120"]
    words += ["--out", str(tmp_path / "out"), "--executor", "loop", "--devices", "cpu,cpu"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedhead", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen,
        start_new_session=True,  # so that only these get the signal, as from a terminal of theirs
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.rglob("metrics.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(list(tmp_path.rglob("metrics.jsonl"))) == 2
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[1]  # to the end of the last process that may write
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert said.count("stopped;") == 1, said
    assert said.endswith("stopped; the same command goes on where it stopped\n")
    assert "Traceback" not in said
