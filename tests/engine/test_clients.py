"""The clients' half of an exchange: what they hold, when they train and on which batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from simulations import make_simulation
from small import SIZES, federation, network

from fedhead.algorithm.phase import Phase, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.policies.reply_check import Refused
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.job import Job
from fedhead.executors.loop import Loop
from fedhead.methods import METHODS

HOLDERS = [0, 1, 3, 4]  # client 2 has no samples


def simulate(method: str = "fedavg", **local: object) -> Simulation:
    settings = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(0.5), **local)  # type: ignore[arg-type]  # any of its fields
    return make_simulation(federation(), [network("group")], METHODS[method](), rounds=3, local=settings)


def test_the_learning_rate_decays_from_the_second_round_on() -> None:
    made = simulate(lr_decay=0.1)
    assert [made.clients.lr(number) for number in (1, 2, 3)] == pytest.approx([0.5, 0.05, 0.005])


def test_clients_without_samples_neither_train_nor_are_tested() -> None:
    made = simulate()
    assert made.clients.holders == HOLDERS == made.cohort(1)
    assert [accuracy is None for accuracy in made.evaluate(made.context(1)).accuracy] == [size == 0 for size in SIZES]


def test_what_is_trained_on_leaves_local_test_samples_out() -> None:
    fed = federation()
    kept = [rows[1:] for rows in fed.indices]
    held_out = replace(
        fed, indices=kept, client_test=[rows[:1] for rows in fed.indices], client_test_from="train", test=None
    )
    local = LocalTraining(epochs=1, batch_size=4)
    made = make_simulation(held_out, [network("group")], METHODS["fedavg"](), rounds=1, local=local)
    pool = made.task.pool
    assert pool is not None
    assert torch.equal(pool.x, fed.train.x[np.concatenate(kept)])
    assert torch.equal(pool.y, fed.train.y[np.concatenate(kept)])
    assert made.task.sizes == tuple(len(rows) for rows in kept)
    tested = made.evaluate(made.context(1)).accuracy
    assert [accuracy in (0.0, 100.0) for accuracy in tested] == [size > 0 for size in SIZES]  # one sample each


def test_public_samples_are_never_augmented() -> None:
    made = simulate()
    assert made.clients.pool.transform.augment
    assert made.clients.public is not None
    assert not made.clients.public.transform.augment
    assert made.clients.public.transform.mean == made.clients.pool.transform.mean


def test_a_phase_on_public_samples_needs_some() -> None:
    class Public(METHODS["fedavg"]):  # type: ignore[misc, name-defined]  # the class comes from a registry
        def phases(self, task: Task) -> list[Phase]:
            return [replace(phase, data="public") for phase in super().phases(task)]

    fed, local = replace(federation(), public=None), LocalTraining(epochs=1, batch_size=4)
    made = make_simulation(fed, [network("group")], Public(), rounds=1, local=local)
    with pytest.raises(BadInput, match="needs public data"):
        train_round(made, 1)


def test_a_phase_trains_on_private_or_public_samples() -> None:
    class Misspelt(METHODS["fedavg"]):  # type: ignore[misc, name-defined]  # the class comes from a registry
        def phases(self, task: Task) -> list[Phase]:
            return [replace(phase, data="publik") for phase in super().phases(task)]

    made = make_simulation(federation(), [network("group")], Misspelt(), rounds=1, local=LocalTraining(epochs=1))
    with pytest.raises(BadInput, match="'publik': use private or public"):
        made.jobs_of_round(1)


@pytest.mark.parametrize(("drop_last", "steps"), [(False, [3, 2, 4, 1]), (True, [2, 1, 3, 1])])
def test_batches_are_those_of_the_settings(drop_last: bool, steps: list[int]) -> None:
    made = simulate(drop_last=drop_last)
    (job,) = made.jobs(made.experiment.method, made.server, made.states, HOLDERS, 1)
    assert [len(schedule) for (schedule,) in job.schedules] == [2 * n for n in steps]
    assert {schedule.positions.shape[1] for (schedule,) in job.schedules} == {4}


def test_only_optimizers_that_persist_are_part_of_a_clients_state() -> None:
    assert "~optimizer" not in simulate().clients.initial_state(0)
    assert "~optimizer" in simulate(persistent=True).clients.initial_state(0)


def test_what_is_posted_is_counted_for_every_client() -> None:
    made = simulate("ktpfl")  # whose clients are sent something of their own from the second round on
    train_round(made, 1)
    downlink = make_downlink(made.experiment.method, made.server, HOLDERS, made.clients.task_of)
    each = [downlink.per_client[k].nbytes for k in HOLDERS]
    assert min(each) > 0
    assert downlink.nbytes() == 4 * downlink.broadcast.nbytes + sum(each)
    plain = simulate()
    model = make_downlink(plain.experiment.method, plain.server, HOLDERS, plain.clients.task_of)
    assert model.nbytes() == 4 * plain.server["model"].nbytes > 0


def test_a_reply_that_is_unlike_the_others_is_refused_and_changes_nothing() -> None:
    class Odd(Loop):
        def train(self, job: Job) -> list[Reply]:
            *replies, last = super().train(job)
            return [*replies, last._replace(send=last.send.replace(more=torch.zeros(1)))]

    made = simulate("scaffold")
    before = made.server
    with pytest.raises(Refused, match="client 4, round 1: unexpected tensor 'more'"):
        train_round(made.using(Odd()), 1)
    assert made.server is before
    assert not made.states.kept


def test_a_kept_state_owns_its_memory() -> None:
    made, stacked = simulate(), torch.zeros(100, 3)
    made.states[0] = Tree(a=stacked[0])
    assert made.states[0]["a"].untyped_storage().nbytes() == 12  # not the whole stack's
