"""On a GPU: the clients' models in one stack say what they say one after another."""

from __future__ import annotations

import pytest
import torch
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.clients.server import make_downlink
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors import forward
from fedhead.executors.forward import ForwardExecutor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.map_clients import MemoryBudget
from fedhead.methods import METHODS
from fedhead.models.precision import set_precision
from fedhead.papers.analyses import cka, client_models, collapse
from fedhead.stages.ccvr import CCVR
from gpu import GPU

pytestmark = GPU
LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.02))


def trained(name: str, norm: str, bf16: bool = False) -> Simulation:
    set_precision("fp32")
    model = network(norm, METHODS[name].head)
    made = make_simulation(federation(), [model], METHODS[name](), rounds=1, local=LOCAL, device="cuda", bf16=bf16)
    train_round(made.using(Loop()), 1)
    return made


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_personal_models(name: str, norm: str, bf16: bool) -> None:
    simulation = trained(name, norm, bf16)
    assert simulation.clients.federation.client_test is not None
    assert simulation.test is not None
    post = make_downlink(
        simulation.experiment.method, simulation.server, simulation.clients.holders, simulation.clients.task_of
    )
    (job,) = simulation.clients.work(simulation.experiment.method, post, simulation.states, 2, trains=False)
    rows, budget = [simulation.clients.federation.client_test[k] for k in job.clients], MemoryBudget()
    stacked = forward.personal_scores(job, simulation.test, rows, budget)
    apart = forward.personal_scores(job, simulation.test, rows, None)
    assert not budget.one_by_one
    tolerance = 3e-2 if bf16 else 1e-4
    for mine, theirs in zip(stacked, apart, strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


def test_statistics() -> None:
    simulation = trained("fedavg", "batch")
    stage, passes = CCVR().on_method(simulation.experiment.method), ForwardExecutor()
    (job,) = simulation.jobs(stage, simulation.server, simulation.states, simulation.clients.holders, 2)
    for stacked, alone in zip(passes.train(job), Loop().train(job), strict=True):
        for name, value in alone.send["statistics"].items():
            torch.testing.assert_close(stacked.send["statistics"][name], value, atol=1e-3, rtol=1e-4)
    assert not passes.budget.one_by_one


def test_analyses() -> None:
    simulation = trained("fedavg", "batch")
    assert simulation.test is not None
    models = client_models.local_models(simulation, Loop(), 2)
    batches = [simulation.test.view(torch.arange(20, device="cuda"), None)]
    assert cka.similarity(simulation.task.model, models, batches).clients == simulation.clients.holders
    assert collapse.local_view(simulation, Loop(), 2).clients == simulation.clients.holders
