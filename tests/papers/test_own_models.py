"""Analyses of clients' own models, of one architecture or several."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from mixed import pair
from simulations import make_simulation
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.split_model import SplitModel
from fedhead.papers.analyses import client_models, collapse
from fedhead.papers.analyses.personal import outputs, personal_models


def trained(name: str, models: list[SplitModel]) -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05))
    made = make_simulation(federation(), models, METHODS[name](), rounds=1, local=local, dtype=torch.float64)
    train_round(made.using(Loop()), 1)
    return made


@pytest.mark.parametrize("name", ["fedclassavg", "fedproto"])
def test_outputs_of_personal_models_of_several_architectures(name: str) -> None:
    simulation = trained(name, pair())
    assert simulation.test is not None
    models, rows = personal_models(simulation, 2), torch.arange(0, 20, 2)
    found = outputs(models, simulation.test, rows, chunk=4)
    assert list(found) == simulation.clients.holders
    for client, said in found.items():
        with torch.no_grad():
            expected = models[client](simulation.test.view(rows, None))
        for mine, theirs in zip(said, expected, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("models", [lambda: [network("batch")], pair], ids=["one", "mixed"])
def test_features_of_the_clients_own_samples(models: Callable[[], list[SplitModel]]) -> None:
    simulation = trained("fedclassavg", models())

    def view(executor: Executor) -> collapse.LocalView:
        return collapse.local_view(simulation, executor, 2)

    stacked, apart = view(Stack()), view(Loop())
    assert stacked.clients == apart.clients == simulation.clients.holders
    assert torch.equal(stacked.has_class, apart.has_class)
    torch.testing.assert_close(stacked.prototypes, apart.prototypes, atol=1e-10, rtol=1e-10)
    # and by hand for one client
    k = simulation.clients.holders[-1]
    w = client_models.local_models(simulation, Loop(), 2)[k]
    rows = torch.from_numpy(simulation.clients.federation.indices[k])
    with torch.no_grad():
        out = torch.func.functional_call(
            simulation.clients.task_of(k).model.eval(), dict(w), (simulation.clients.pool.view(rows, None),)
        )
    mine = simulation.clients.pool.y[rows] == int(simulation.clients.pool.y[rows][0])
    place = stacked.prototypes[-1, int(simulation.clients.pool.y[rows][0])]
    torch.testing.assert_close(place, out.z[mine].mean(0), atol=1e-10, rtol=1e-10)
