"""Runs that train together prepare their next round while the present one trains; a CPU stands for the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from noted_tables import note_tables
from same_trees import assert_same
from small import federation, network

import fedhead as fh
from fedhead.algorithm.phase import Reply
from fedhead.core.tree.finite import FiniteCheck
from fedhead.engine.clients import prefetch
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client import job_tables
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job
from fedhead.executors.joint.jobs import merge_jobs
from fedhead.executors.joint.runs import JointRuns, run_together
from fedhead.executors.stack.stack import Stack, by_steps

LOCAL = fh.LocalTraining(epochs=2, batch_size=4, optimizer=fh.SGD(lr=0.05))
ROUNDS = 3


@pytest.fixture(params=["at once", "background"], autouse=True)
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the samples are few enough to be put into tables at once."""
    if request.param == "background":
        monkeypatch.setattr(prefetch, "FEW", 0)


def simulation(
    seed: int, method: type[fh.Method], executor: Executor, data: fh.Federation | None = None, **settings: Any
) -> Simulation:
    data = federation() if data is None else data
    usual: dict[str, Any] = {"rounds": ROUNDS, "local": LOCAL, "seed": seed}
    made = Simulation(data, [network("group", method.head)], method(), executor=executor, **usual | settings)
    made.padding_check = lambda job, group: None  # type: ignore[assignment]  # it makes small tables of its own
    return made


def train_together(runs: Sequence[Callable[[Executor], Simulation]]) -> list[Simulation]:
    """Train runs in one stack, as on a GPU: all tensors stay on the CPU."""

    return run_together(Stack(), [partial(train_rounds, make, 1, ROUNDS) for make in runs])


def train_rounds(make: Callable[[Executor], Simulation], first: int, last: int, executor: Executor) -> Simulation:
    made = make(executor)
    made.device = torch.device("cuda")
    for number in range(first, last + 1):
        train_round(made, number)
    return made


def assert_same_end(found: list[Simulation], expected: list[Simulation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_same(one.server, other.server)
        assert one.states.kept.keys() == other.states.kept.keys()
        for k, state in other.states.kept.items():
            assert_same(one.states.kept[k], state)


@pytest.mark.parametrize("seeds", [[0, 1, 2], [3, 3]], ids=["different batches", "the same batches"])
@pytest.mark.parametrize("settings", [{}, {"participation": 0.5}], ids=["all", "some"])
@pytest.mark.parametrize("method", [fh.FedAvg, fh.KTpFL], ids=lambda method: method.name)
def test_runs_with_tables_made_ahead_end_with_the_same_numbers(
    method: type[fh.Method], settings: dict[str, Any], seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [partial(simulation, seed, method, **settings) for seed in seeds]
    with monkeypatch.context() as patch:
        used = note_tables(patch)
        found = train_together(runs)
        if method is fh.FedAvg:  # with several phases, clients may be trained in several stacks
            assert used == [False, True, True]
    monkeypatch.setattr(Simulation, "draw_ahead", lambda *args: None)
    unused = note_tables(monkeypatch)
    expected = train_together(runs)
    assert not any(unused)
    assert_same_end(found, expected)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [([(1, 4), (2, 4), (3, 4)], [False, False, False, True]), ([(1, 2), (1, 4), (1, 3)], [False, True, True, True])],
    ids=["resumed", "stopped"],
)
def test_runs_that_begin_or_end_with_other_rounds_end_with_the_same_numbers(
    rounds: list[tuple[int, int]], expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train() -> list[Simulation]:
        make = [partial(simulation, seed, fh.FedAvg, rounds=4) for seed in (0, 0, 1)]
        each = zip(make, rounds, strict=True)
        return run_together(Stack(), [partial(train_rounds, run, *own) for run, own in each])

    with monkeypatch.context() as patch:
        used = note_tables(patch)
        found = train()
    assert used == expected, "a run that has just begun has none, and then none are merged"
    monkeypatch.setattr(Simulation, "draw_ahead", lambda *args: None)
    assert_same_end(found, train())


class Small(Stack):
    """A stack that runs out of memory in the second round, in which it has tables for all clients."""

    name = "stack"

    def _run_stack(self, job: Job) -> Sequence[Reply]:
        if job.round == 2 and len(job.clients) > 4:
            raise torch.OutOfMemoryError("full")
        return super()._run_stack(job)


def test_a_stack_that_is_halved_takes_none_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [partial(train_rounds, partial(simulation, seed, fh.FedAvg), 1, ROUNDS) for seed in (0, 1)]
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with monkeypatch.context() as patch:
        used = note_tables(patch)
        found = run_together(Small(), runs)
    assert used == [False, True, *4 * [False]], "nor are any made for the next round"
    monkeypatch.setattr(Simulation, "draw_ahead", lambda *args: None)
    assert_same_end(found, run_together(Small(), runs))


def test_merged_tables_are_those_that_a_merged_job_would_make() -> None:
    joint = JointRuns(Stack())
    runs = [simulation(seed, fh.FedAvg, joint.join(), participation=part) for seed, part in enumerate((1.0, 0.5, 0.75))]
    for run in runs:
        run.draw_ahead(run.cohort(2), 2)
    jobs = [run.jobs_of_round(2)[0] for run in runs]
    assert all(job.tables is not None for job in jobs)
    merged, plain = merge_jobs(jobs), merge_jobs([replace(job, tables=None) for job in jobs])
    (order,) = by_steps(merged)
    merged, plain = merged.take(order), plain.take(order)
    assert merged.tables is not None
    assert plain.tables is None
    for one, other in zip(merged.stacked_batches(), plain.stacked_batches(), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))
        assert one[3:] == other[3:]
    assert merge_jobs([*jobs[:2], replace(jobs[2], tables=None)]).tables is None, "one run has none"


def test_all_runs_prepare_the_next_round_before_the_gpu_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    draw, result = Simulation.draw_ahead, FiniteCheck.result
    monkeypatch.setattr(Simulation, "draw_ahead", lambda *args: events.append(f"draw {args[2]}") or draw(*args))
    monkeypatch.setattr(FiniteCheck, "result", lambda check: events.append("wait") or result(check))
    train_together([partial(simulation, seed, fh.FedAvg) for seed in (0, 1)])
    waits = [place for place, event in enumerate(events) if event == "wait"]
    assert events[: waits[0] + 1] == ["draw 2", "draw 2", "wait"]
    assert [event for event in events if event != "wait"] == ["draw 2"] * 2 + ["draw 3"] * 2 + ["draw 4"] * 2


def test_a_run_that_can_not_prepare_its_next_round_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = Simulation.draw_ahead

    def drawing(run: Simulation, clients: list[int], round: int, tables: bool) -> None:
        if run.task.seed == 0 and round == 3:
            raise fh.BadInput("no batches")
        draw(run, clients, round, tables)

    monkeypatch.setattr(Simulation, "draw_ahead", drawing)
    ended: list[Simulation] = []

    def run(seed: int, executor: Executor) -> None:
        made = simulation(seed, fh.FedAvg, executor)
        made.device = torch.device("cuda")
        for number in range(1, ROUNDS + 1):
            train_round(made, number)
        ended.append(made)

    with pytest.raises(fh.BadInput, match="no batches"):
        run_together(Stack(), [partial(run, seed) for seed in (0, 1, 2)])
    assert {made.task.seed for made in ended} == {1, 2}
    assert [made.round for made in ended] == [ROUNDS, ROUNDS]


def test_the_rows_of_all_runs_are_put_into_one_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool keeps a few tables of rows: those of single runs, which no stack uses, would take the place of it."""
    data, made = federation(), list[int]()
    plainly = job_tables._rows_and_mask
    monkeypatch.setattr(job_tables, "_rows_and_mask", lambda pool, rows: made.append(len(rows)) or plainly(pool, rows))
    splits = [replace(data, rows=[rows.copy() for rows in data.rows]) for _ in range(5)]
    train_together([partial(simulation, seed, fh.FedAvg, data=split) for seed, split in enumerate(splits)])
    assert made == [5 * sum(len(rows) > 0 for rows in data.rows)]
