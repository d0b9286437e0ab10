"""The tables of a round's batches are made ahead, and are those that would have been made in the round."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from noted_tables import note_tables
from simulations import make_simulation
from small import federation, network
from tiers import quick

import fedhead as fh
from fedhead.core.training.per_client_counts import Uniform
from fedhead.engine.clients import client_batches
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client import job_tables
from fedhead.executors.client.base import Executor
from fedhead.executors.client.job import Job
from fedhead.executors.stack.stack import Stack, by_steps
from fedhead.models.split_model import SplitModel
from fedhead.testing.small import small_perceptron

LOCAL = fh.LocalTraining(epochs=2, batch_size=4, optimizer=fh.SGD(lr=0.05))
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {},
    "some": {"participation": 0.5},
    "drop_last": {"local": replace(LOCAL, drop_last=True)},
    "drawn": {"local": replace(LOCAL, epochs=Uniform(1, 4, "round"))},
    "late": {"stragglers": fh.Stragglers("partial", 0.7)},
}


@pytest.fixture(params=["at once", "background"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether the samples are put into tables at once."""
    if request.param == "background":
        monkeypatch.setattr(client_batches, "FEW", 0)
    return bool(request.param == "at once")


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches are drawn in the background."""
    monkeypatch.setattr(client_batches, "FEW", 0)


def simulation(method: fh.Method | None = None, others: Sequence[SplitModel] = (), **settings: Any) -> Simulation:
    data = federation()
    sizes = [len(rows) for rows in data.indices]
    assert sizes != sorted(sizes, reverse=True), "a stack takes the clients in another order"
    method = method or fh.FedAvg()
    usual = {"rounds": 3, "local": LOCAL}
    made = make_simulation(data, [network("group", method.head), *others], method, **usual | settings)
    made.clients.padding_check = lambda job, group: None  # type: ignore[assignment]  # it makes small tables of its own
    return made


def stacked(job: Job) -> Job:
    """The job as a stack takes it."""
    (order,) = by_steps(job)
    return job.take(order)


def assert_same(a: Job, b: Job) -> None:
    mine, theirs = a.stacked_inputs(), b.stacked_inputs()
    for name in ("indices", "mask", "steps"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    for one, other in zip(a.stacked_batches(), b.stacked_batches(), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one[:3], other[:3], strict=True))
        assert one[3:] == other[3:]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    "method", quick([fh.FedAvg(), fh.FedRep(), fh.KTpFL()], fh.FedRep()), ids=lambda method: method.name
)
def test_tables_that_were_made_ahead_are_those_of_the_round(method: fh.Method, name: str, few: bool) -> None:
    made = simulation(method, **SETTINGS[name])
    made.clients.draw_ahead(made.cohort(2), 2)
    (job,) = made.jobs_of_round(2)
    (plain,) = simulation(method, **SETTINGS[name]).jobs_of_round(2)
    if len(by_steps(job)) > 1:  # their phases are ordered differently
        assert job.tables is None
        return
    assert job.tables is not None
    assert stacked(job).tables is not None
    assert_same(stacked(job), stacked(replace(job, tables=None)))
    assert_same(stacked(job), stacked(plain))
    assert made.jobs_of_round(2)[0].tables is None, "they serve one round"


def test_many_samples_of_dirichlet_clients_are_put_into_tables_in_the_background() -> None:
    rng = np.random.RandomState(0)
    x, y = rng.randint(0, 256, (4000, 1, 6, 6)).astype(np.uint8), rng.randint(0, 10, 4000)
    data = fh.Federation.from_arrays(x, y, "dirichlet(0.3)", clients=8, seed=0)
    local = replace(LOCAL, epochs=5, batch_size=32)
    one, other = (
        make_simulation(data, [fh.build("mlp", (1, 6, 6), 10)], fh.FedAvg(), rounds=3, local=local) for _ in "ab"
    )
    one.clients.draw_ahead(one.cohort(2), 2)
    (job,), (plain,) = one.jobs_of_round(2), other.jobs_of_round(2)
    assert job.tables is not None
    assert isinstance(job.tables.batches, Future)
    assert job.tables.places != sorted(job.tables.places)
    assert_same(stacked(job), stacked(plain))


def test_what_was_made_ahead_is_not_made_again(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = simulation()
    made.clients.draw_ahead(made.cohort(2), 2)
    made.clients.batches.wait()

    def never(*args: object) -> None:
        raise AssertionError("made in the round")

    monkeypatch.setattr(job_tables, "batch_tables", never)
    job = stacked(made.jobs_of_round(2)[0])
    assert [len(rows) for rows in job.indices] == sorted(map(len, job.indices), reverse=True)
    assert len(job.stacked_batches()[0]) == 8
    with pytest.raises(AssertionError, match="made in the round"):
        replace(job, tables=None).stacked_batches()


def test_a_thread_that_makes_tables_leaves_the_device_alone(background: None, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[str, set[str]] = {}
    for name in ("to_device", "batch_tables"):
        monkeypatch.setattr(job_tables, name, _noting(threads, name, getattr(job_tables, name)))
    made = simulation(fh.KTpFL())
    made.clients.draw_ahead(made.cohort(2), 2)
    stacked(made.jobs_of_round(2)[0]).stacked_batches()
    assert threads.pop("to_device") == {threading.current_thread().name}
    assert threads == {"batch_tables": {"batches_0"}}


def _noting(threads: dict[str, set[str]], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any) -> Any:
        threads.setdefault(name, set()).add(threading.current_thread().name)
        return function(*args)

    return noting


def test_another_cohort_or_round_has_its_own_tables(few: bool) -> None:
    made = simulation()
    made.clients.draw_ahead(made.cohort(2)[1:], 2)
    (job,) = made.jobs_of_round(2)
    assert job.tables is None
    assert_same(stacked(job), stacked(simulation().jobs_of_round(2)[0]))
    made.clients.draw_ahead(made.cohort(2), 2)
    assert made.jobs_of_round(3)[0].tables is None


def test_what_is_drawn_ahead_for_another_cohort_is_forgotten(few: bool) -> None:
    made = simulation(rounds=50)
    for round in range(2, 9):
        made.clients.draw_ahead(made.clients.holders, round)  # and nobody asks for them
    assert [ahead.round for ahead in made.clients.batches._ahead.values()] == [8]


def test_a_part_of_a_job_and_a_shorter_one_have_their_own_tables(few: bool) -> None:
    made = simulation()
    made.clients.draw_ahead(made.cohort(2), 2)
    (job,) = made.jobs_of_round(2)
    (order,) = by_steps(job)
    assert job.take(order[:2]).tables is None
    assert job.take(order[::-1]).tables is None
    assert job.truncated(1).tables is None
    assert len(stacked(job.truncated(1)).stacked_batches()[0]) == 1
    # the job itself has another order than its tables
    assert torch.equal(job.stacked_inputs().steps, replace(job, tables=None).stacked_inputs().steps)
    assert job.take(list(range(len(order)))).stacked_batches()[0].key[0] == job.schedules[0][0].key


# -- runs ---------------------------------------------------------------------------------------------
def trained(made: Simulation, executor: Executor, ahead: bool) -> list[bool]:
    """Train all rounds, with tables made ahead as beside a GPU; return of each stack whether it had some."""
    if ahead:
        made.clients.device = torch.device("cuda")  # as the run sees it: all tensors stay on the CPU
    with pytest.MonkeyPatch.context() as patch:
        used = note_tables(patch)
        for number in range(1, 4):
            train_round(made.using(executor), number)
    return used


def assert_same_end(one: Simulation, other: Simulation) -> None:
    trees = [(one.server, other.server), *((state, other.states.kept[k]) for k, state in one.states.kept.items())]
    for mine, theirs in trees:
        assert mine.leaves().keys() == theirs.leaves().keys()
        assert all(torch.equal(a, b) for a, b in zip(mine.tensors(), theirs.tensors(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("method", [fh.FedAvg(), fh.FedRep(), fh.KTpFL()], ids=lambda method: method.name)
def test_a_run_with_tables_made_ahead_ends_with_the_same_numbers(method: fh.Method, name: str, few: bool) -> None:
    one, other = (simulation(method, **SETTINGS[name]) for _ in range(2))
    used = trained(one, Stack(), ahead=True)
    assert not any(trained(other, Stack(), ahead=False))
    assert_same_end(one, other)
    if method.name == "fedavg":  # with several phases, clients may be trained in several stacks
        assert used == [False, True, True]


@pytest.mark.parametrize("executor", [partial(Stack, size=2), fh.Loop], ids=["cut", "loop"])
def test_stacks_that_are_cut_and_other_executors_make_none_ahead(executor: Callable[[], Executor], few: bool) -> None:
    one, other = simulation(), simulation()
    assert not any(trained(one, executor(), ahead=True))
    assert not one.clients.batches._ahead
    trained(other, executor(), ahead=False)
    assert_same_end(one, other)


def test_several_architectures_have_tables_of_their_own(few: bool) -> None:
    one, other = (simulation(fh.FedProto(), [small_perceptron()]) for _ in range(2))
    assert trained(one, Stack(), ahead=True) == [False, False, True, True, True, True]
    trained(other, Stack(), ahead=False)
    assert_same_end(one, other)


# -- rows ---------------------------------------------------------------------------------------------
def test_the_rows_of_the_same_clients_are_copied_once() -> None:
    made = simulation()
    jobs = [stacked(made.jobs_of_round(number)[0]) for number in (1, 2)]
    first, second = (job.stacked_inputs() for job in jobs)
    assert second.indices is first.indices
    assert second.mask is first.mask
    fewer = jobs[0].take([0, 2]).stacked_inputs()
    assert torch.equal(fewer.indices[1], first.indices[2])
    assert jobs[1].stacked_inputs().indices is first.indices, "several tables are kept"
    jobs[0].inputs(0)
    assert jobs[1].stacked_inputs().indices is first.indices
