"""Tests of commands that share their runs among several devices."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedhead.cli import call
from fedhead.cli.output import raise_failures
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.papers.tables import paper_tables as tables
from fedhead.studies import devices as several_devices
from fedhead.studies.devices import check_devices, on_each, read_devices


@pytest.mark.parametrize("text", ["", ",", "gpu", "0,x", "cuda:", "-1"])
def test_what_is_no_list_of_devices(text: str) -> None:
    with pytest.raises(BadInput, match="--devices"):
        read_devices(text)


@pytest.mark.parametrize(("given", "word"), [({"device": "cuda"}, "--device"), ({"shard": "1/2"}, "--shard")])
def test_what_the_option_already_says(given: dict[str, str], word: str) -> None:
    with pytest.raises(BadInput, match=f"leave {word} out"):
        check_devices("0,1", **{"device": "auto", "shard": None, **given})


@pytest.mark.parametrize(
    ("count", "says"), [(0, "no GPU 7; torch sees none"), (2, "no GPU 7; torch sees 2, numbered from 0")]
)
def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, count: int, says: str) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    with pytest.raises(BadInput, match=f"--devices cpu,7: there is {says}"):
        check_devices("cpu,7", device="auto", shard=None)
    assert check_devices("cpu,cpu", device="auto", shard=None) == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("names", "given", "expected"),
    [
        (["cuda:0"] * 5, {}, {"OMP_NUM_THREADS": "3"}),
        (["cuda:0", "cuda:1"], {}, {"OMP_NUM_THREADS": "8"}),
        (["cuda:0"] * 40, {}, {"OMP_NUM_THREADS": "1"}),
        (["cuda:0", "cuda:0"], {"OMP_NUM_THREADS": "16"}, {}),
        (["cpu", "cpu"], {}, {}),
    ],
)
def test_processes_on_gpus_share_the_threads_of_the_host(
    monkeypatch: pytest.MonkeyPatch, names: list[str], given: dict[str, str], expected: dict[str, str]
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 16)
    assert several_devices.shared_threads(names, given) == expected


def test_a_process_that_fails_is_named_when_all_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[list[str]] = []
    threads: list[str | None] = []

    class Process:
        def __init__(self, command: list[str], stdout: int, env: dict[str, str]) -> None:
            begun.append(command)
            threads.append(env.get("OMP_NUM_THREADS"))
            self.code = int("cuda:1" in command)

        def wait(self) -> int:
            return self.code

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("torch.get_num_threads", lambda: 16)

    monkeypatch.setattr(several_devices.subprocess, "Popen", Process)
    monkeypatch.setattr(sys, "argv", ["fedhead", "sweep", "a.yaml", "--devices", "1,0"])
    with on_each(["cuda:1", "cuda:0"], None) as (claims, broken):
        assert claims is not None
        assert claims.is_dir()
    with pytest.raises(FedheadError, match=r"the process of cuda:1 failed, see above; 2 runs are left; the same comm"):
        raise_failures({}, broken, missing=2)
    heads = [
        ["sweep", "a.yaml", "--device", "cuda:1", "--claims"],
        ["sweep", "a.yaml", "--device", "cuda:0", "--claims"],
    ]
    assert [command[3:-1] for command in begun] == heads
    assert begun[0][-1] == begun[1][-1], "processes that share their runs know each other's claims"
    assert threads == ["8", "8"]


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
    monkeypatch.setattr(several_devices, "subprocess", None)
    Path("file").touch()
    words = ["reproduce", "ccvr/table1", "--scale", "small", "--cells", "clsprox", "--devices", "cpu,cpu"]
    assert call([*words, option, "file"]) == 2
    said = capsys.readouterr()
    assert said.err == f"error: file can't keep {what}: it is no folder; select another folder with {option}\n"
    assert said.out == ""
    assert not list(tmp_path.rglob("table.*"))


OWN = """
from dataclasses import dataclass
import fedhead as fh

@dataclass(frozen=True)
class Raises(fh.Method):
    'FedAvg that fails for some values of its parameter.'
    a: int = 0
    def loss(self, w, batch, client):
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
    codes: list[int] = []

    class Process:  # in this very process, one after another
        def __init__(self, line: list[str], stdout: int, env: dict[str, str]) -> None:
            codes.append(call(line[3:]))

        def wait(self) -> int:
            return codes[0]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(several_devices, "subprocess", SimpleNamespace(Popen=Process, DEVNULL=subprocess.DEVNULL))
    monkeypatch.setattr(tables, "load", lambda name: tables.parse(name, TABLE))
    (tmp_path / "own.py").write_text(OWN)
    arguments = {
        "sweep": ["sweep", "digits", "method=own.py:Raises", "method.a=[1,2,3,4]", "rounds=1", "subset=120"],
        "reproduce": ["reproduce", "own/table1"],
    }[command]
    arguments += ["--out", "out", "--executor", "loop", "--devices", "cpu,cpu"]
    monkeypatch.setattr(sys, "argv", ["fedhead", *arguments])
    assert call(arguments) == 1
    assert codes == [0, 0], "what fails is named by the process that began the others"
    said = capsys.readouterr()
    assert len(list((tmp_path / "out").rglob("result.json"))) == 2, "the others are run though the first one fails"
    *_, last = said.err.splitlines()
    first = {"sweep": "a=1, seed 0", "reproduce": "one, seed 0"}[command]
    assert last.startswith(
        f"error: {first}: Raises.loss (own.py, line 11): ValueError: no loss for a=1 (1 more failed)"
    )
    assert said.out.count("written to") == 3  # by the two, whose own goes nowhere, and at the end
    failures = json.loads((tmp_path / "out" / "table.json").read_text())["failures"]
    assert sorted(reason[-1] for reason in failures.values()) == ["1", "2"]
    assert "the time is up" not in said.err + said.out
    assert said.err.count("error: ") == 1


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
    assert "error: one, seed 0: Raises.loss (own.py, line 11): ValueError: no loss for a=1 (1 more failed)" in said.err
    assert "the time is up" not in said.err


def test_a_process_that_does_not_end_on_ctrl_c_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SIGTERM raises an exception, which Python loses in a destructor."""
    started: list[subprocess.Popen[bytes]] = []

    class Deaf(subprocess.Popen[bytes]):
        def __init__(self, *_: object, **__: object) -> None:
            ignoring = "import signal as s, time; s.signal(s.SIGTERM, s.SIG_IGN); print(flush=True); time.sleep(1000)"
            super().__init__([sys.executable, "-c", ignoring], stdout=subprocess.PIPE)
            assert self.stdout is not None
            with self.stdout as ready:
                ready.readline()
            started.append(self)

        def wait(self, timeout: float | None = None) -> int:
            if timeout is None:
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(several_devices.subprocess, "Popen", Deaf)
    monkeypatch.setattr(several_devices, "END_SECONDS", 0.2)
    with pytest.raises(KeyboardInterrupt), on_each(["cpu"], None):
        pass
    assert started[0].wait(5) == -signal.SIGKILL


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
        start_new_session=True,  # so that only these get the signal, as from a terminal of theirs
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.rglob("metrics.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[1]  # to the end of the last process that may write
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    assert said.count("stopped;") == 1, said
    assert said.endswith("stopped; the same command goes on where it stopped\n")
    assert "Traceback" not in said
