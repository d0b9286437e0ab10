"""Tests of what `fedhead bench` prints besides its numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedhead.bench import benchmark
from fedhead.bench.benchmark import BenchmarkResult
from fedhead.cli import call
from fedhead.cli.bench import COLUMNS, HEADER, LOOP_NOTE
from fedhead.models import precision

BENCH = ["bench", "--device", "cpu", "--workloads", "simplecnn,moon", "--clients", "2", "--precisions", "fp32"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no time for measuring."""

    def measure(workload: benchmark.Workload, clients: int, executor: str, *_: object) -> BenchmarkResult:
        return BenchmarkResult(workload.name, clients, executor, "fp32", 10.0, 0.0, 0.1, 0.0, 0.0)

    monkeypatch.setattr(benchmark, "measure", measure)
    monkeypatch.setattr(benchmark, "plain_steps_per_s", lambda *_: 10.0)
    monkeypatch.setattr(benchmark, "copy_bandwidth", lambda *_: 1e9)
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)  # each has a client of the loop


@pytest.mark.parametrize("executor", ["loop", "stack"])
def test_each_workload_has_one_header(executor: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--executors", executor]) == 0
    lines = capsys.readouterr().out.removesuffix(f"{COLUMNS}\n{LOOP_NOTE.format(2)}\n").splitlines()
    assert [line == HEADER for line in lines] == [True, False, False] * 2


def test_the_table_says_why_the_loop_has_fewer_clients(capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--clients", "10", "--json"]) == 0
    *table, _, _, note, more, results = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in table if line != HEADER] == ["2", "10"] * 2  # the loop's and the stack's
    assert note.startswith("loop: clients train one after another")
    assert f"{note}\n{more}" == LOOP_NOTE.format(2)
    assert [row["clients"] for row in json.loads(results)] == [2, 10] * 2


def test_every_column_of_numbers_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(BENCH) == 0
    legend = " ".join(capsys.readouterr().out.splitlines()[-4:-2])
    names = HEADER.partition("prec.")[2].replace("comp. s", "comp._s").split()
    assert names == ["steps/s", "ratio", "floor", "GiB", "comp._s"]
    assert all(f"{name.replace('_', ' ')}: " in legend for name in names)


@pytest.mark.parametrize(("rate", "shown"), [(1.26, "1.3"), (99.94, "99.9"), (410.4, "410"), (102_700.0, "102,700")])
def test_slow_machines_see_more_than_one_digit(
    rate: float, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = BenchmarkResult("SimpleCNN, FedAvg", 2, "loop", "fp32", rate, 0.0, 0.1, 0.0, 0.0)
    monkeypatch.setattr(benchmark, "measure", lambda *_: slow)
    monkeypatch.setattr(benchmark, "plain_steps_per_s", lambda *_: 0.0)
    assert call([*BENCH, "--workloads", "simplecnn"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[5] == shown


@pytest.mark.parametrize(("threads", "clients"), [(1, 2), (2, 2), (16, 16)])
def test_each_thread_has_a_client_of_the_loop(
    threads: int, clients: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    assert call([*BENCH, "--json"]) == 0
    *_, note, more, results = capsys.readouterr().out.splitlines()
    assert f"{note}\n{more}" == LOOP_NOTE.format(clients)
    assert [row["clients"] for row in json.loads(results) if row["executor"] == "loop"] == [clients] * 2


def test_each_row_is_shown_before_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plainly, shown = benchmark.measure, list[tuple[int, str]]()

    def noting(*args: Any) -> BenchmarkResult:
        out, err = capsys.readouterr()
        shown.append((len([line for line in out.splitlines() if line != HEADER]), err))
        return plainly(*args)

    monkeypatch.setattr(benchmark, "measure", noting)
    assert call([*BENCH, "--clients", "2,4", "--workloads", "simplecnn"]) == 0
    assert shown == [
        (0, "measuring SimpleCNN, FedAvg, 2 clients, loop, fp32\n"),
        (1, "measuring SimpleCNN, FedAvg, 2 clients, stack, fp32\n"),
        (1, "measuring SimpleCNN, FedAvg, 4 clients, stack, fp32\n"),
    ]


@pytest.mark.parametrize("has_bf16", [True, False])
def test_a_cpu_measures_little_if_nothing_is_asked_for(
    has_bf16: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda where: has_bf16)
    assert call(["bench", "--device", "cpu"]) == 0
    begun = [line.removeprefix("measuring SimpleCNN, FedAvg, ") for line in capsys.readouterr().err.splitlines()]
    emulated = [] if has_bf16 else ["10 clients, stack, bf16"]
    assert [*begun, *emulated] == ["2 clients, loop, fp32", "10 clients, stack, fp32", "10 clients, stack, bf16"]


@pytest.mark.parametrize("executors", ["lanes", "stack,lanes"])
def test_lanes_are_refused_without_a_gpu(executors: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([*BENCH, "--executors", executors]) == 2
    said = capsys.readouterr()
    assert "executor lanes: its streams need a GPU" in said.err
    assert said.out == ""
