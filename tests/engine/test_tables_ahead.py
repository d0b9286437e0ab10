"""The tables of a round's batches are made ahead, and are those that would have been made in the round."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import federation, network

import fedhead as fh
from fedhead.algorithm.task import LocalTraining
from fedhead.core.optimizers import SGD
from fedhead.engine import prefetch
from fedhead.engine.simulation import Simulation
from fedhead.executors.job import Job
from fedhead.executors.shared_work import SharedWork
from fedhead.executors.stack import Stack


def simulation(in_order: bool = True, **settings: object) -> Simulation:
    local = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(0.05))
    data = federation()
    assert [len(rows) for rows in data.rows] != sorted(map(len, data.rows), reverse=True)
    if in_order:  # clients with more samples come first, as in a stack
        data = replace(data, rows=sorted(data.rows, key=len, reverse=True))
    return Simulation(data, [network("group")], fh.FedAvg(), rounds=3, local=local, **settings)  # type: ignore[arg-type]  # settings of any type


def assert_same(a: Job, b: Job) -> None:
    mine, theirs = a.stacked_inputs(), b.stacked_inputs()
    for name in ("rows", "mask", "steps"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name
    for one, other in zip(a.stacked_batches(), b.stacked_batches(), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one[:3], other[:3], strict=True))
        assert one[3:] == other[3:]


def test_tables_that_were_made_ahead_are_those_of_the_round() -> None:
    made = simulation()
    made.draw_ahead(made.cohort(2), 2)
    (job,) = made.jobs_of_round(2)
    assert job.tables is not None
    assert_same(job, replace(job, tables=None))
    assert_same(job, simulation().jobs_of_round(2)[0])
    assert made.jobs_of_round(2)[0].tables is None, "they serve one round"


def test_another_cohort_or_round_has_its_own_tables() -> None:
    made = simulation()
    made.draw_ahead(made.cohort(2)[1:], 2)
    assert made.jobs_of_round(2)[0].tables is None
    made.draw_ahead(made.cohort(2), 2)
    assert made.jobs_of_round(3)[0].tables is None


def test_a_part_of_a_job_and_a_shorter_one_have_their_own_tables() -> None:
    made = simulation()
    made.draw_ahead(made.cohort(2), 2)
    (job,) = made.jobs_of_round(2)
    assert job.take([1, 0]).tables is None
    assert job.truncated(1).tables is None
    assert len(job.truncated(1).stacked_batches()[0]) == 1


def test_large_rounds_and_runs_that_train_together_make_none_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = simulation(executor=_shared())
    joint.draw_ahead(joint.cohort(2), 2)
    assert joint.jobs_of_round(2)[0].tables is None
    monkeypatch.setattr(prefetch, "FEW", 0)  # all are drawn in the background
    made = simulation()
    made.draw_ahead(made.cohort(2), 2)
    assert made.jobs_of_round(2)[0].tables is None


def _shared() -> Stack:
    stack = Stack()
    stack.shared = SharedWork()
    return stack


def test_clients_that_a_stack_puts_into_another_order_have_none_ahead() -> None:
    made = simulation(in_order=False)
    made.draw_ahead(made.cohort(2), 2)
    assert made.jobs_of_round(2)[0].tables is None
