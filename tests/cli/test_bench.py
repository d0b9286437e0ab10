"""Tests of what `fedhead bench` prints besides its numbers."""

from __future__ import annotations

import json

import pytest

from fedhead.cli import call
from fedhead.cli.benching import HEADER, LOOP_NOTE
from fedhead.experiment import benchmark
from fedhead.experiment.benchmark import BenchmarkResult

BENCH = ["bench", "--device", "cpu", "--workloads", "simplecnn,moon", "--clients", "2", "--precisions", "fp32"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no time for measuring."""

    def measure(workload: benchmark.Workload, clients: int, executor: str, *_: object) -> BenchmarkResult:
        return BenchmarkResult(workload.name, clients, executor, "fp32", 10.0, 0.0, 0.1, 0.0, 0.0)

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setattr(benchmark, "plain_steps_per_s", lambda *_: 10.0)
    monkeypatch.setattr(benchmark, "copy_bandwidth", lambda *_: 1e9)


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_each_workload_has_one_header(executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--executors", executor]) == 0
    lines = capsys.readouterr().out.removesuffix(f"{LOOP_NOTE}\n").splitlines()
    assert [line == HEADER for line in lines] == [True, False, False] * 2


def test_the_table_says_why_the_loop_has_fewer_clients(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--clients", "10", "--json"]) == 0
    *table, note, more, results = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in table if line != HEADER] == ["2", "10"] * 2  # the loop's and the stack's
    assert note.startswith("loop: its clients train one after another")
    assert f"{note}\n{more}" == LOOP_NOTE
    assert [row["clients"] for row in json.loads(results)] == [2, 10] * 2


def test_lanes_without_a_gpu_are_left_out_with_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--executors", "stack,lanes"]) == 0
    said = capsys.readouterr()
    assert said.err == "lanes need a GPU: they are left out\n"
    assert "lanes" not in said.out
    assert call(BENCH) == 0
    assert capsys.readouterr() == (said.out, "")  # no one has asked for them


def test_lanes_alone_are_refused_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--executors", "lanes"]) == 2
    said = capsys.readouterr()
    assert "--executors lanes: lanes need a GPU" in said.err
    assert said.out == ""
