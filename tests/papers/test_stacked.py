"""Analyses of clients' models that are stacked give the numbers of one client after another."""

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
from fedhead.executors.lanes.lanes import Lanes
from fedhead.executors.loop import Loop
from fedhead.executors.stack import map_clients
from fedhead.executors.stack.map_clients import MemoryBudget
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.split_model import SplitModel
from fedhead.papers.analyses import cka, client_models, collapse
from fedhead.papers.analyses.personal import outputs, personal_models


def trained(name: str, models: list[SplitModel]) -> Simulation:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05))
    made = make_simulation(federation(), models, METHODS[name](), rounds=1, local=local, dtype=torch.float64)
    train_round(made.using(Loop()), 1)
    return made


@pytest.mark.parametrize(
    "budget", [MemoryBudget(), MemoryBudget(clients=3), MemoryBudget(samples=20)], ids=["all", "threes", "twos"]
)
def test_cka_of_stacked_models(budget: MemoryBudget) -> None:
    simulation = trained("fedavg", [network("batch")])
    assert simulation.test is not None
    models = client_models.local_models(simulation, Loop(), 2)
    batches = [simulation.test.view(part, None) for part in torch.arange(20).split(8)]
    model = simulation.task.model
    stacked, apart = cka.similarity(model, models, batches, budget=budget), cka.similarity(model, models, batches)
    assert not budget.one_by_one
    assert list(stacked.layers) == list(apart.layers)
    for name, matrix in apart.layers.items():
        torch.testing.assert_close(stacked.layers[name], matrix, atol=1e-10, rtol=1e-10)
    assert stacked.means()["extractor.body"] < 1  # the clients' models have grown apart


@pytest.mark.parametrize("name", ["fedclassavg", "fedproto"])
def test_outputs_of_stacked_personal_models_of_several_architectures(name: str) -> None:
    simulation = trained(name, pair())
    assert simulation.test is not None
    models, rows = personal_models(simulation, 2), torch.arange(0, 20, 2)
    budget = MemoryBudget()
    found = outputs(models, simulation.clients.assign, simulation.test, rows, budget, chunk=4)
    assert list(found) == simulation.clients.holders
    assert not budget.one_by_one
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
    assert not any(budget.one_by_one for budget in simulation.clients.budgets)
    assert torch.equal(stacked.held, apart.held)
    torch.testing.assert_close(stacked.prototypes, apart.prototypes, atol=1e-10, rtol=1e-10)
    # and by hand for one client
    k = simulation.clients.holders[-1]
    w = client_models.local_models(simulation, Loop(), 2)[k]
    rows = torch.from_numpy(simulation.clients.federation.rows[k])
    with torch.no_grad():
        out = torch.func.functional_call(
            simulation.clients.task_of(k).model.eval(), dict(w), (simulation.clients.pool.view(rows, None),)
        )
    mine = simulation.clients.pool.y[rows] == int(simulation.clients.pool.y[rows][0])
    place = stacked.prototypes[-1, int(simulation.clients.pool.y[rows][0])]
    torch.testing.assert_close(place, out.z[mine].mean(0), atol=1e-10, rtol=1e-10)


def test_only_stacked_runs_and_gpus_have_room() -> None:
    simulation = trained("fedavg", [network("group")])
    assert client_models.budget(simulation, Loop()) is None
    assert client_models.budget(simulation, Stack()) == MemoryBudget()
    assert map_clients.use_stacks(torch.device("cuda"), Loop())
    assert not map_clients.use_stacks(torch.device("cuda"), Lanes())
    assert MemoryBudget.on(torch.device("cuda")).samples > MemoryBudget.on(torch.device("cpu")).samples


def test_models_on_the_same_samples_beside_each_other() -> None:
    simulation = trained("ditto", [network("batch")])
    models = list(client_models.local_models(simulation, Loop(), 2).values())
    x = torch.rand(3, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    doubled = map_clients.map_models(lambda w, x: w.map(lambda t: 2 * t), models, x, MemoryBudget(clients=2))
    assert len(doubled) == len(models)
    for w, twice in zip(models, doubled, strict=True):
        torch.testing.assert_close(dict(twice), dict(2 * w))
