"""FedClassAvg on a mixed federation: against a plain loop, on every executor, and what crosses the wire."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from mixed import pair, perceptron
from simulations import make_simulation
from small import CLASSES, federation, network
from tiers import quick
from torch import nn
from torch.nn import functional as F

from fedhead.algorithm.method import Method
from fedhead.algorithm.task import LocalTraining
from fedhead.core.system.errors import BadInput
from fedhead.core.training import random
from fedhead.core.training.batch import Batch
from fedhead.core.training.optimizers import SGD, Adam
from fedhead.core.tree.tree import Tree
from fedhead.engine.rounds.rounds import train_round
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.methods.fedclassavg import FedClassAvg
from fedhead.methods.ktpfl import KTpFL
from fedhead.methods.local_only import LocalOnly
from fedhead.models.split_model import SplitModel, load, weights

ADAM = LocalTraining(epochs=2, batch_size=4, optimizer=Adam(lr=0.01, betas=(0.5, 0.999)))
PLAIN = LocalTraining(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9), lr_decay=0.9)
PUBLIC_CODE = FedClassAvg(rho=3.0, temperature=100, base_temperature=0.07, normalize=False, proximal="mean_squared")


def simulate(
    method: Method, models: list[SplitModel] | None = None, local: LocalTraining = ADAM, **settings: float
) -> Simulation:
    return make_simulation(
        federation(), models or pair(), method, rounds=3, local=local, dtype=torch.float64, **settings
    )


def contrast(first: torch.Tensor, second: torch.Tensor, y: torch.Tensor, method: FedClassAvg) -> torch.Tensor:
    """Khosla et al.'s Eq. 2 over unpadded samples, one anchor after another."""
    views, labels = torch.cat([first, second]), torch.cat([y, y])
    if method.normalize:
        views = views / views.norm(dim=1, keepdim=True)
    total = views.new_zeros(())
    for i in range(len(views)):
        others = [a for a in range(len(views)) if a != i]
        scores = (views[others] @ views[i]) / method.temperature
        chosen = labels[others] == labels[i]
        total = total - (scores - torch.logsumexp(scores, 0))[chosen].mean()
    scale = method.temperature / method.base_temperature if method.base_temperature else 1.0
    return total / len(views) * scale


def plain_round(simulation: Simulation, method: FedClassAvg) -> tuple[Tree, dict[int, SplitModel]]:
    """Algorithm 1 with torch modules and torch.optim, one client after another; also the clients' own models."""
    pool, fed = simulation.clients.pool, simulation.clients.federation
    models: dict[int, SplitModel] = {}
    jobs = simulation.jobs(
        simulation.experiment.method, simulation.server, simulation.states, simulation.clients.holders, 1
    )
    for job in jobs:
        for place, client in enumerate(job.clients):
            model = copy.deepcopy(job.program.task.model).train()
            classifier = copy.deepcopy(simulation.server["model"])
            load(model, simulation.clients.initial[simulation.clients.assign[client]].replace(classifier))
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.5, 0.999))
            table = job.batches(place)[0]
            for step in range(len(table)):
                batch, _ = table.batch(step, pool)
                batch = Batch(*(t[batch.weight > 0] for t in batch))
                if method.cl:  # both views as one batch, over which BatchNorm normalizes
                    views = torch.cat([batch.x, pool.view(batch.indices, random.fold_in(batch.key, 1))])
                    out, count = model(views), len(batch.y)
                    loss = F.cross_entropy(out.logits[:count], batch.y)
                    loss = loss + contrast(out.h[:count], out.h[count:], batch.y, method)
                else:
                    loss = F.cross_entropy(model(batch.x).logits, batch.y)
                now = dict(model.named_parameters())
                apart = [(now[n] - classifier[n]).flatten() for n in ("classifier.weight", "classifier.bias")]
                if method.proximal == "mean_squared":  # nn.MSELoss, a parameter after the other
                    loss = loss + method.rho / 2 * sum((t**2).mean() for t in apart)
                elif step > 0:  # a norm has no gradient at 0, where the two classifiers are one
                    loss = loss + method.rho * (torch.cat(apart) ** 2).sum().sqrt()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            models[client] = model
    total = sum(len(fed.indices[k]) for k in models)
    average = {
        name: sum(len(fed.indices[k]) / total * dict(m.named_parameters())[name].detach() for k, m in models.items())
        for name in ("classifier.weight", "classifier.bias")
    }
    return Tree(average), models


@pytest.mark.parametrize(
    "method", quick([FedClassAvg(rho=0.3), PUBLIC_CODE, FedClassAvg(cl=False)], FedClassAvg(rho=0.3))
)
@pytest.mark.parametrize("executor", [Loop(), Stack()])
def test_one_round_on_two_architectures_is_algorithm_1(method: FedClassAvg, executor: Executor) -> None:
    simulation = simulate(method)
    average, models = plain_round(simulation, method)
    train_round(simulation.using(executor), 1)
    assert simulation.server["model"].keys() == {"classifier.weight", "classifier.bias"}
    for name, t in simulation.server["model"].items():
        torch.testing.assert_close(t, average[name], atol=1e-10, rtol=1e-9)
    for client, model in models.items():
        own = simulation.states[client]["own"]
        for name, t in weights(model).items():
            # a convolution's bias before BatchNorm has a gradient of rounding errors alone, which Adam blows up
            idle = name in ("extractor.body.0.bias", "extractor.body.1.running_mean")
            torch.testing.assert_close(own[name], t, atol=1e-6 if idle else 1e-10, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedclassavg", "ktpfl", "local"])
def test_a_mixed_federation_gives_the_same_on_every_executor(name: str) -> None:
    runs = []
    for executor in (Loop(), Stack(), Stack(size=1)):
        simulation = make_simulation(
            federation(), pair(), METHODS[name](), rounds=3, local=PLAIN, participation=0.6, dtype=torch.float64
        )
        for number in (1, 2, 3):
            train_round(simulation.using(executor), number)
        runs.append(simulation)
    for other in runs[1:]:
        for left, right in [
            (runs[0].server, other.server),
            *((state, other.states.kept[k]) for k, state in runs[0].states.kept.items()),
        ]:
            assert left.leaves().keys() == right.leaves().keys()
            for path, t in left.leaves().items():
                torch.testing.assert_close(t, right.leaves()[path], atol=1e-10, rtol=1e-10)


VARIANTS = [FedClassAvg(share="all"), KTpFL(share="all", transfer=0.5), PUBLIC_CODE, FedClassAvg(ca=False)]


@pytest.mark.parametrize("method", quick(VARIANTS, PUBLIC_CODE))
def test_variants_give_the_same_on_every_executor(method: Method) -> None:
    runs = []
    for executor in (Loop(), Stack()):
        simulation = simulate(method, [network("batch")], PLAIN, participation=0.6)
        for number in (1, 2):
            train_round(simulation.using(executor), number)
        runs.append(simulation)
    for client, state in runs[0].states.kept.items():
        for path, t in state.leaves().items():
            torch.testing.assert_close(t, runs[1].states.kept[client].leaves()[path], atol=1e-10, rtol=1e-10)


def test_only_the_classifier_crosses_the_wire() -> None:
    simulation = simulate(FedClassAvg())
    size = 4 * (8 * CLASSES + CLASSES) * 2  # float64 here
    jobs = simulation.jobs(
        simulation.experiment.method, simulation.server, simulation.states, simulation.clients.holders, 1
    )
    for job in jobs:
        assert set(job.broadcast.leaves()) == {"model/classifier.weight", "model/classifier.bias"}
        assert all(not own for own in job.per_client)
        for reply in Loop().train(job):
            assert set(reply.send.leaves()) == {"model/classifier.weight", "model/classifier.bias"}
            assert reply.send.nbytes == size
    traffic = train_round(simulation.using(Loop()), 1)
    assert traffic["bytes_up"] == traffic["bytes_down"] == size * len(simulation.clients.holders)


def test_plus_weight_shares_the_whole_model_of_one_architecture() -> None:
    simulation = simulate(FedClassAvg(share="all"), [network("batch")])
    train_round(simulation.using(Loop()), 1)
    assert simulation.server["model"].keys() == simulation.clients.initial[0].keys()
    assert simulation.experiment.method.global_model(simulation.server, simulation.task) is not None
    with pytest.raises(BadInput, match=r"client 1: fedclassavg averages 'extractor"):
        simulate(FedClassAvg(share="all"))


def test_without_its_three_parts_it_is_local_training() -> None:
    ours = simulate(FedClassAvg(ca=False, pr=False, cl=False))
    theirs = simulate(LocalOnly())
    for number in (1, 2):
        assert train_round(ours.using(Loop()), number)["bytes_up"] == 0
        train_round(theirs.using(Loop()), number)
    for client in ours.clients.holders:
        for name, t in theirs.states[client]["own"].items():
            assert torch.equal(ours.states[client]["own"][name], t), name


@pytest.mark.parametrize("part", ["pr", "cl", "ca"])
def test_each_part_can_be_switched_off(part: str) -> None:
    whole, without = simulate(FedClassAvg(rho=0.5)), simulate(FedClassAvg(rho=0.5, **{part: False}))
    for simulation in (whole, without):
        for number in (1, 2):
            train_round(simulation.using(Loop()), number)
    apart = whole.states[0]["own"] - without.states[0]["own"]
    assert math.sqrt(float(apart.sq())) > 1e-3


def test_a_client_uses_its_own_model_after_training_and_the_servers_before() -> None:
    simulation = simulate(FedClassAvg(share="all"), [network("group")], participation=0.4)
    train_round(simulation.using(Loop()), 1)
    trained = sorted(simulation.states.kept)
    waiting = next(k for k in simulation.clients.holders if k not in trained)
    for job in simulation.jobs(
        simulation.experiment.method, simulation.server, simulation.states, simulation.clients.holders, 2
    ):
        for place, client in enumerate(job.clients):
            w = simulation.experiment.method.personal_model(job.program.client(job.inputs(place)))
            if client in trained:
                assert all(torch.equal(t, simulation.states[client]["own"][n]) for n, t in w.items())
            if client == waiting:
                assert all(torch.equal(t, simulation.server["model"][n]) for n, t in w.items())


# -- bad input ------------------------------------------------------------------------------------
def test_feature_dimensions_that_differ_are_refused_with_the_clients_number() -> None:
    with pytest.raises(
        BadInput, match=r"client 1: its features have 16 dimensions and client 0's have 8.*feature_layer=8"
    ):
        simulate(FedClassAvg(), [network("batch"), perceptron(16)])


def test_a_model_without_such_a_classifier_is_refused_with_the_clients_number() -> None:
    models = [network("batch"), network("group"), perceptron(bias=False)]
    with pytest.raises(BadInput, match=r"client 2: .*'classifier.bias', which is not there in its model.*same head"):
        simulate(FedClassAvg(), models)


def test_a_batch_of_one_sample_is_refused_for_batchnorm_alone() -> None:
    one = LocalTraining(epochs=1, batch_size=1, optimizer=SGD(lr=0.01))
    with pytest.raises(BadInput, match=r"client 1: batch_size 1 .*BatchNorm layer 'extractor.body.1'.*2 or more"):
        simulate(FedClassAvg(), [perceptron(), network("batch")], one)
    fine = simulate(FedClassAvg(), [perceptron(), network("group")], one)
    train_round(fine.using(Loop()), 1)
    assert fine.server.finite()


def test_assignment_by_list() -> None:
    simulation = simulate(FedClassAvg(), None, ADAM, assign=[1, 1, 0, 0, 1])  # type: ignore[arg-type]  # not a number
    train_round(simulation.using(Loop()), 1)
    assert "extractor.1.weight" in simulation.states[0]["own"]
    assert isinstance(simulation.clients.task_of(3).model.extractor.body, nn.Sequential)
