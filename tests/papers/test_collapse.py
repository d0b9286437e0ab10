"""Neural collapse: known answers, and what is measured on a federation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulations import make_simulation
from small import CLASSES, federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.cli.analyse import _numbers
from fedhead.core.system.errors import BadInput
from fedhead.core.training.optimizers import SGD
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds import rounds
from fedhead.engine.rounds.observer import RoundFunction, Snapshot
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.methods.fedavg import FedAvg
from fedhead.methods.fedproto import FedProto
from fedhead.models.heads import etf
from fedhead.papers.analyses import collapse
from fedhead.papers.analyses.registry import ANALYSES, AnalysisOptions
from fedhead.recipes.recipe import Recipe
from fedhead.runs.reopen import Trained, reopen
from fedhead.runs.run import execute

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(0.05))


@given(st.integers(2, 20), st.integers(-1, 30), st.integers(0, 1000))
def test_a_collapsed_model_measures_as_one(classes: int, extra: int, key: int) -> None:
    vectors = etf(classes, classes + extra, key).double()
    y = torch.arange(3 * classes) % classes
    z = 2.5 * vectors[y]
    means, counts = collapse.prototypes(z, y, classes)
    assert counts.tolist() == [3] * classes
    assert collapse.within_over_between(z, y, classes) == pytest.approx(0, abs=1e-12)
    assert collapse.simplex_error(means) == pytest.approx(0, abs=1e-10)
    assert collapse.alignment(means, vectors) == pytest.approx(1, abs=1e-6)
    assert collapse.alignment(means, -vectors) == pytest.approx(-1, abs=1e-6)


def test_orthogonal_and_equal_prototypes() -> None:
    # orthogonal: every cosine is 0, so the error is (1/(C−1))²; all alike: (1 + 1/(C−1))²
    assert collapse.simplex_error(torch.eye(5)) == pytest.approx(1 / 16)
    assert collapse.simplex_error(torch.ones(5, 3)) == pytest.approx((1 + 1 / 4) ** 2)
    assert math.isnan(collapse.simplex_error(torch.ones(1, 3)))


def test_variance_within_over_between() -> None:
    # two classes at ±1 with samples ±0.5 around: within 0.25, between 1
    z = torch.tensor([[0.5], [1.5], [-0.5], [-1.5]])
    assert collapse.within_over_between(z, torch.tensor([0, 0, 1, 1]), 3) == pytest.approx(0.25)


def test_agreement_counts_only_classes_that_both_hold() -> None:
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    vectors = torch.stack([torch.stack([a, a]), torch.stack([a, b]), torch.stack([2 * b, b])])
    cosines = collapse.agreement(vectors)
    assert cosines[0].tolist() == [1, 0.5, 0]
    held = torch.tensor([[True, False], [True, True], [False, True]])
    masked = collapse.agreement(vectors, held)
    assert masked[0, 1] == 1
    assert masked[1, 2] == 1
    assert math.isnan(masked[0, 2])
    assert collapse.consistency(vectors, held) == 1
    assert collapse.consistency(vectors) == pytest.approx((0.5 + 0 + 0.5) / 3)


@pytest.mark.parametrize("name", ["fedavg", "fedetf", "fedrod", "fedrod_hyper", "scaffold"])
def test_local_views_are_those_of_the_round_that_follows(name: str) -> None:
    model = network("batch", METHODS[name].head)
    simulation = make_simulation(federation(), [model], METHODS[name](), rounds=1, local=LOCAL, dtype=torch.float64)
    loop, stack = (collapse.local_view(simulation, executor, 1) for executor in (Loop(), Stack()))
    assert loop.clients == stack.clients == [0, 1, 3, 4]
    assert loop.prototypes.shape == (4, CLASSES, model.features)
    for a, b in zip(loop[1:], stack[1:], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)
    fed = simulation.clients.federation
    held = [torch.bincount(fed.train.y[fed.indices[k]], minlength=CLASSES) > 0 for k in loop.clients]
    assert torch.equal(loop.has_class, torch.stack(held))
    train_round(simulation.using(Loop()), 1)
    shares = [float(len(fed.indices[k])) for k in loop.clients]
    mean = sum(n * v for n, v in zip(shares, loop.vectors, strict=True)) / sum(shares)
    if name != "scaffold":  # whose server takes a step of its own
        torch.testing.assert_close(simulation.server["model"]["classifier.weight"], mean)


def test_metrics_of_each_round_of_a_run_change_nothing() -> None:
    settings = {"rounds": 3, "local": LOCAL}
    runs = []
    for watched in (True, False):
        simulation = make_simulation(federation(), [network("group")], FedAvg(), **settings)
        rows: list[dict[str, float]] = []

        def record(now: Snapshot, rows: list[dict[str, float]] = rows, simulation: Simulation = simulation) -> None:
            rows.append(collapse.round_metrics(simulation, Loop(), now.round))

        result = rounds.run(simulation, [RoundFunction(record)] if watched else [])
        runs.append((simulation, rows, result))
    (simulation, rows, result), (_, _, alone) = runs
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert result.weights is not None
    assert alone.weights is not None
    assert (result.weights - alone.weights).sq() == 0
    assert rows[-1]["nc2"] == pytest.approx(collapse.measure(simulation).nc2)
    assert -1 <= rows[-1]["prototype_consistency"] <= 1


def test_a_run_without_a_global_model_is_refused() -> None:
    simulation = make_simulation(federation(), [network("group")], FedProto(), rounds=1, local=LOCAL)
    with pytest.raises(BadInput, match="no global model"):
        collapse.measure(simulation)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Trained]:
    """A FedAvg and a FedETF run of two rounds on digits, as their folders keep them."""
    out = tmp_path_factory.mktemp("runs")
    for name in ("fedavg", "fedetf"):
        recipe = Recipe(
            dataset="digits", method=name, rounds=2, clients=4, lr=0.05, subset=300, model_parameters={"hidden": (16,)}
        )
        execute(recipe, out / name, Compute(executor="loop", device="cpu"))
    return [reopen(out / name, device="cpu") for name in ("fedavg", "fedetf")]


def test_collapse_of_runs_in_chosen_rounds(trained: list[Trained]) -> None:
    report = ANALYSES["collapse"].run(trained, AnalysisOptions(rounds=[1, 2]))
    assert set(report.numbers) == {"fedavg dirichlet(0.1)", "fedetf dirichlet(0.1)"}
    for one, rows in zip(trained, report.numbers.values(), strict=True):
        assert [row["round"] for row in rows] == [1, 2]
        assert rows[-1]["nc2"] == pytest.approx(collapse.measure(one.simulation).nc2)
        assert rows[0]["nc2"] != rows[1]["nc2"]
    etf = list(report.numbers.values())[1]
    assert etf[0]["classifier_consistency"] == pytest.approx(1, abs=1e-6)  # the frame is the same for all
    assert set(report.figures) == {""}
    with pytest.raises(BadInput, match="round 3 is not among"):
        ANALYSES["collapse"].run(trained, AnalysisOptions(rounds=[3]))


def test_classifiers_of_runs(trained: list[Trained]) -> None:
    numbers = ANALYSES["classifiers"].run(trained, AnalysisOptions()).numbers
    avg, etf = numbers.values()
    clients = len(avg["clients"])
    assert len(avg["place"]) == clients * 10 == len(avg["class"])
    assert avg["mean_cosine"] < etf["mean_cosine"] == pytest.approx(1, abs=1e-6)
    assert [row[k] for k, row in enumerate(avg["cosines"])] == pytest.approx([1.0] * clients)
    places = torch.tensor(etf["place"]).reshape(clients, 10, 2)
    spread = places.std(dim=(0, 1)).norm()
    assert (places - places[0]).norm(dim=-1).max() < 1e-3 * spread  # one frame for all: equal vectors, equal places


def test_rounds_are_read_as_numbers_and_spans() -> None:
    assert _numbers("1,4-6,5") == [1, 4, 5, 6]
    with pytest.raises(BadInput, match="--rounds"):
        _numbers("1,x")
