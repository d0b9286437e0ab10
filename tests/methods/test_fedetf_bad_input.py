"""Odd federations: right results or a clear refusal, for all methods of the FedETF family."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from simulations import simulate
from small import CLASSES, federation, network
from tiers import quick

import fedhead as fh
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.data.federation.federation import Federation
from fedhead.engine.rounds.observer import FinishedRun
from fedhead.methods import METHODS
from fedhead.recipes import experiment as build
from fedhead.recipes.experiment import build_experiment
from fedhead.recipes.recipe import Recipe
from fedhead.runs.run import execute
from fedhead.stages import STAGES

FAMILY = ["ditto", "fedetf", "fednh", "fedproto", "fedrep", "fedrod", "fedrod_hyper"]


def go(fed: Federation, name: str, *stages: Stage) -> FinishedRun:
    local = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))
    model = network("batch", METHODS[name].head)
    return simulate(fed, model, METHODS[name](), rounds=2, local=local, stages=stages, executor="stack")


def finite(result: FinishedRun) -> bool:
    states = [result.server, *result.clients.values(), *(o.states[0] for o in result.stages.values())]
    return all(state.finite() for state in states)


@pytest.mark.parametrize("name", quick(FAMILY, "fedetf", "fednh"))
def test_clients_of_one_class_and_of_one_sample(name: str) -> None:
    fed = federation()
    y = fed.train.y.numpy()
    rows = [np.flatnonzero(y == 0), np.array([5]), np.flatnonzero(y == 2)[:3], np.flatnonzero(y == 1)]
    fed = dataclasses.replace(fed, indices=rows, client_test=[np.arange(4)] * 4)
    result = go(fed, name, fh.FineTune())
    assert finite(result)
    assert len(result.stages["finetune"].metrics["clients"]) == 4


@pytest.mark.parametrize("name", quick(FAMILY, "fedetf", "fedproto"))
def test_a_class_that_no_client_has(name: str) -> None:
    fed = federation()
    fed = dataclasses.replace(fed, indices=[rows[fed.train.y[rows].numpy() != 1] for rows in fed.indices])
    result = go(fed, name, fh.FineTune())
    assert finite(result)
    if name == "fedproto":
        assert result.server["prototypes"]["seen"].tolist() == [1, 0, 1]
        job = result.transport.jobs(fh.FedProto(), result.server, result.transport.states, [0], 3)[0]
        client = job.program.client(job.inputs(0))
        scores = result.transport.experiment.method.predict(client.state["own"], torch.zeros(1, 1, 6, 6), client)
        assert scores[0, 1] == -torch.inf  # a class without a prototype is never predicted


@pytest.mark.parametrize("name", ["finetune", "finetune_etf"])
def test_some_empty_local_test_sets_are_left_out_of_the_mean(name: str) -> None:
    fed = federation()
    assert fed.client_test is not None
    fed = dataclasses.replace(fed, client_test=[np.arange(0), *fed.client_test[1:]])
    stage = STAGES[name](**({"iterations": 1} if name == "finetune_etf" else {}))
    metrics = go(fed, "fedetf", stage).stages[name].metrics
    assert metrics["clients"][0] is None  # nothing to test
    assert metrics["clients"][2] is None  # nothing to train
    there = [c for c in metrics["clients"] if c is not None]
    assert len(there) == 3
    assert metrics["personal"] == pytest.approx(sum(there) / 3)


@pytest.mark.parametrize("local", [None, [np.arange(0)] * 5])
def test_personalization_without_local_test_sets_is_refused_before_training(local: list[np.ndarray] | None) -> None:
    fed = dataclasses.replace(federation(), client_test=local)
    seen: list[object] = []
    with pytest.raises(BadInput, match=r"no client has one.*client_test=0\.3"):
        simulate(
            fed,
            network("group"),
            fh.FedAvg(),
            rounds=1,
            local=LocalTraining(),
            stages=[fh.FineTune()],
            on_round=seen.append,
        )
    assert not seen


def test_recipes_choose_the_head_that_a_method_needs() -> None:
    (model,) = build_experiment(Recipe(dataset="digits", method="fedetf")).models
    assert model.head == "etf"
    (model,) = build_experiment(Recipe(dataset="digits", method="fednh")).models
    assert model.head == "prototype"
    result = fh.run(federation(), "mlp", "fedetf", rounds=1)
    assert result.trained.clients.task.model.head == "etf"
    with pytest.raises(BadInput, match=r"fedetf needs a model with the etf head"):
        fh.run(federation(), fh.build("mlp", (1, 6, 6), CLASSES), "fedetf", rounds=1)
    with pytest.raises(BadInput, match=r"at least 2 dimensions"):
        fh.with_head(network("group"), "etf", dim=1)


def test_a_recipe_that_can_t_be_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(BadInput, match="fedetf needs a model with the etf head"):
        build_experiment(Recipe(dataset="digits", method="fedetf", model_parameters={"head": "linear"}))
    with pytest.raises(BadInput, match="finetune_etf needs a model with the etf head"):
        build_experiment(Recipe(dataset="digits", method="fedavg", stages=("finetune_etf",)))
    with pytest.raises(BadInput, match=r"client_test=0\.3"):
        execute(Recipe(dataset="digits", method="fedetf", stages=("finetune",)), out)
    assert not out.exists()


def test_parameters_out_of_range_are_refused() -> None:
    for make in (lambda: fh.FedNH(rho=1.5), lambda: fh.FedRep(head_epochs=0), lambda: fh.FedETF(gamma=-1)):
        with pytest.raises(BadInput, match=r"^Fed\w+: \w+: .* is out of range"):
            make()
    with pytest.raises(BadInput, match=r"method.absent"):
        build.algorithms(Recipe(dataset="digits", method="fedetf", method_parameters={"absent": "two"}))


@pytest.mark.slow
def test_partial_participation_follows_one_sampling_list_for_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cohort of a round depends on seed and round alone, so that every method meets the same clients."""
    from fedhead.engine.policies import sampling

    drawn: list[tuple[int, list[int]]] = []
    original = sampling.draw

    def note(sampler: fh.Sampler, number: int, count: int, sizes: dict[int, int], seed: int) -> sampling.Cohort:
        cohort = original(sampler, number, count, sizes, seed)
        drawn.append((number, cohort.clients))
        return cohort

    monkeypatch.setattr(sampling, "draw", note)
    lists = []
    for name in ("fedavg", *FAMILY):
        drawn.clear()
        local = LocalTraining(batch_size=4)
        model = network("group", METHODS[name].head)
        simulate(
            federation(), model, METHODS[name](), rounds=4, local=local, participation=0.4, executor="loop", seed=3
        )
        lists.append(dict(drawn))
    assert all(found == lists[0] for found in lists)
    assert {len(cohort) for cohort in lists[0].values()} == {2}
    assert len({tuple(cohort) for cohort in lists[0].values()}) > 1
