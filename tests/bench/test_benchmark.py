"""Times of `fedhead bench`: the clients' part of a round as it is in a run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest
import torch

import fedhead as fh
from fedhead.algorithm.phase import Reply
from fedhead.bench import benchmark
from fedhead.bench.benchmark import BenchmarkResult, Workload
from fedhead.engine.clients import client_batches
from fedhead.engine.clients.clients import Clients
from fedhead.executors.client.job import Job
from fedhead.executors.stack.stack import Stack

CPU = torch.device("cpu")
SMALL = Workload("MLPs, FedAvg", ("mlp",), "fedavg")


class NotingLoop(fh.Loop):
    """A loop that notes the clients of each round."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[list[list[int]]] = []

    def train_all(self, jobs: list[Job]) -> Sequence[Sequence[Reply]]:
        """Note them, and train."""
        self.rounds.append([job.clients for job in jobs])
        return super().train_all(jobs)


def measured(workload: Workload, clients: int, executor: str | fh.Executor, repeats: int = 2) -> BenchmarkResult:
    return benchmark.measure(workload, clients, executor, "fp32", CPU, steps=2, repeats=repeats, bandwidth=1e9)


@pytest.mark.slow
def test_a_loop_trains_two_clients_of_each_architecture() -> None:
    worker = NotingLoop()
    worker.name = "loop"
    assert measured(SMALL, 3, worker).steps_per_s > 0
    assert worker.rounds == 3 * [[[0, 1]]], "once to warm up"
    worker.rounds.clear()
    measured(Workload("two architectures", ("mlp", "simplecnn"), "fedproto", 32), 5, worker, repeats=1)
    assert worker.rounds == 2 * [[[0, 2], [1, 3]]]


def test_the_rate_is_that_of_the_clients_which_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([4.0, 2.0, 8.0])

    def timed(work: object, where: torch.device) -> float:
        return next(seconds)

    monkeypatch.setattr(benchmark, "seconds", timed)
    assert measured(SMALL, 3, "stack", repeats=3).steps_per_s == 3 * 2 / 2.0


def test_what_takes_long_is_measured_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([6.0, 5.0, 1.0])
    monkeypatch.setattr(benchmark, "seconds", lambda work, where: next(seconds))
    assert measured(SMALL, 3, "stack", repeats=3).steps_per_s == 3 * 2 / 5.0
    assert list(seconds) == [1.0]


def test_batches_and_tables_are_ready_before_a_round_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_batches, "FEW", 0)  # they are drawn in the background, as of a large round
    simulation = SMALL.simulation(3, 2, CPU, "fp32")
    for tables in (True, False):
        benchmark.draw_and_wait(simulation, simulation.clients.holders, tables)
        assert all(ahead.schedules.done() for ahead in simulation.clients.batches._ahead.values())
        (job,) = simulation.jobs_of_round(1)
        assert (job.tables is not None) == tables
        if job.tables is not None:
            assert isinstance(job.tables.batches, Future)
            assert job.tables.batches.done()


@pytest.mark.slow
def test_a_gpus_rounds_are_drawn_ahead_with_tables_for_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:  # a CPU that is measured as a GPU is
        type = "cuda"

    made = SMALL.simulation(3, 2, CPU, "fp32")
    ahead: list[bool] = []
    plainly = Clients.draw_ahead

    def noting(self: Clients, clients: Sequence[int], round: int, tables: bool = True) -> None:
        ahead.append(tables)
        plainly(self, clients, round, tables)

    monkeypatch.setattr(Workload, "simulation", lambda *args: made)
    monkeypatch.setattr(Clients, "draw_ahead", noting)
    for name in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    for worker, expected in ((Stack(), [True, True]), (fh.Loop(), [False, False]), (Stack(size=2), [False, False])):
        ahead.clear()
        benchmark.measure(SMALL, 3, worker, "fp32", Gpu(), 2, 2, 1e9)  # type: ignore[arg-type]  # a stand-in
        assert ahead == expected
