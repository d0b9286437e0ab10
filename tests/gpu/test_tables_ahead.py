"""On a GPU: the tables of a round's batches are made in the background while the round before trains."""

from __future__ import annotations

import pytest
import torch
from noted_tables import note_tables
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.clients import client_batches
from fedhead.engine.clients.clients import Clients
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.stack.graphs import Graphs
from fedhead.executors.stack.stack import Stack, by_steps
from fedhead.methods import METHODS
from fedhead.models.precision import set_precision
from gpu import GPU

pytestmark = GPU
LOCAL = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.02, momentum=0.9))


@pytest.fixture(autouse=True)
def background(monkeypatch: pytest.MonkeyPatch) -> None:
    """All batches are drawn in the background, as those of large rounds are."""
    monkeypatch.setattr(client_batches, "FEW", 0)


def simulate(method: str, participation: float = 1.0) -> Simulation:
    set_precision("fp32")
    settings = {"rounds": 4, "local": LOCAL, "participation": participation, "device": "cuda"}
    made = make_simulation(federation(), [network("group")], METHODS[method](), **settings)
    return made.using(Stack(graphs=Graphs(compile=False)))


def trained(simulation: Simulation) -> Simulation:
    for number in range(1, 5):
        train_round(simulation, number)
    return simulation


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("method", ["fedavg", "fedrep"])
def test_runs_have_the_same_numbers(method: str, participation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        used = note_tables(patch)
        found = trained(simulate(method, participation))
    assert used == [False, True, True, True]
    monkeypatch.setattr(Clients, "draw_ahead", lambda *args: None)
    other = trained(simulate(method, participation))
    assert found.states.kept.keys() == other.states.kept.keys()
    pairs = [(found.server, other.server), *((found.states[k], other.states[k]) for k in other.states.kept)]
    for mine, theirs in pairs:
        for a, b in zip(mine.tensors(), theirs.tensors(), strict=True):
            assert torch.equal(a.cpu(), b.cpu())


def test_the_host_does_not_wait_for_the_gpu() -> None:
    made = simulate("fedavg")
    for number in (1, 2):  # page-locked memory is allocated the first time
        made.clients.draw_ahead(made.cohort(number), number)
        (job,) = made.jobs_of_round(number)
        (order,) = by_steps(job)
        job = job.take(order)
        assert job.tables is not None
        torch.cuda.synchronize()
        torch.cuda._sleep(1_000_000_000)  # about half a second
        found = job.stacked_inputs().indices, job.stacked_batches()[0].indices
        busy = not torch.cuda.current_stream().query()
        torch.cuda.synchronize()
    assert busy, "the GPU had not caught up"
    assert (
        found[0].tolist()
        == made.clients.pool.index_tables.get_or_make(job.indices, lambda: pytest.fail("not kept"))[0].tolist()
    )
    assert len(found[1]) == max(len(mine[0]) for mine in job.schedules)
