"""Aggregators in a run: the same everywhere, nothing changes without one, and none is silently ignored."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulations import make_simulation, make_world, run
from small import network
from torch import nn

from fedhead.aggregators import AGGREGATORS
from fedhead.aggregators.base import Aggregator, inner_products, mixed, squared_distances
from fedhead.aggregators.centered_clipping import CenteredClipping
from fedhead.aggregators.coordinate_median import CoordinateMedian
from fedhead.aggregators.krum import Krum, krum_scores
from fedhead.algorithm.client import Client
from fedhead.algorithm.method import Method
from fedhead.algorithm.phase import Replies, Reply
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput, FedheadError
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree, Weights
from fedhead.core.tree.tree_rows import tree_mean
from fedhead.data.federation.federation import Federation
from fedhead.engine.rounds.observer import Snapshot
from fedhead.engine.rounds.simulation import Simulation
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods import METHODS
from fedhead.models.wrap import split
from fedhead.stages import STAGES
from fedhead.testing.small import small_federation

LOCAL = LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9))
REFUSED = {"scaffold": "control", "fednh": "prototypes and counts", "fedproto": "sums and counts"}
NO_MODEL = {"local", "ktpfl"}


def federation() -> Federation:
    """Six clients, one more than Krum needs."""
    small = small_federation()
    rows = np.array_split(np.arange(len(small.train.y)), 6)
    return dataclasses.replace(small, indices=rows, client_test=[np.arange(3 * k, 3 * k + 3) for k in range(6)])


def simulation(rule: Aggregator | None, method: Method | None = None, **settings: Any) -> Simulation:
    method = method or METHODS["fedavg"]()
    model = network("batch", method.head)
    return make_simulation(
        federation(), [model], method, **{"rounds": 2, "local": LOCAL, "aggregator": rule, **settings}
    ).using(Loop())


def close(a: Tree, b: Tree, tolerance: float) -> None:
    left, right = a.leaves(), b.leaves()
    assert left.keys() == right.keys()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=tolerance, rtol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [*(AGGREGATORS[name]() for name in sorted(AGGREGATORS)), CoordinateMedian(mixing=2)])
def test_loop_stack_and_sites_give_the_same_numbers(rule: Aggregator, tmp_path: Path) -> None:
    loop, stack = simulation(rule), simulation(rule).using(Stack())
    run(loop), run(stack)
    close(loop.server, stack.server, 1e-5)
    settings = {"rounds": 2, "local": LOCAL, "aggregator": rule}
    world = make_world(federation(), {"own": network("batch")}, METHODS["fedavg"](), settings, tmp_path)
    transport = world.transport(world.grid(), round_seconds=60.0)
    run(transport)
    close(loop.server, transport.server, 1e-6)
    plain = simulation(None)
    run(plain)
    assert float((plain.server["model"] - loop.server["model"]).sq()) > 1e-8


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_takes_an_aggregator_or_is_refused_by_name(name: str) -> None:
    rule, method = CoordinateMedian(), METHODS[name]()
    if name in REFUSED:
        with pytest.raises(BadInput, match=f"median: clients of {name} also send {REFUSED[name]}, which the server"):
            simulation(rule, method)
    elif name in NO_MODEL:
        with pytest.raises(BadInput, match=f"median: {name} averages no model"):
            simulation(rule, method)
    else:
        made = simulation(rule, method, rounds=1)
        run(made)
        assert made.server.finite()


def test_the_median_of_a_round_is_that_of_what_the_clients_sent() -> None:
    made = simulation(CoordinateMedian(), rounds=1)
    sent = [reply.send["model"] for job in made.jobs_of_round(1) for reply in Loop().train(job)]
    run(made)
    for name, value in made.server["model"].items():
        ordered = torch.stack([each[name] for each in sent]).sort(dim=0).values
        torch.testing.assert_close(value, (ordered[2] + ordered[3]) / 2, atol=1e-6, rtol=1e-6)


def test_updates_are_mixed_before_the_rule() -> None:
    mixing, plain = simulation(CoordinateMedian(mixing=2), rounds=1), simulation(CoordinateMedian(), rounds=1)
    held = mixing.server["model"]
    sent = [reply.send["model"] - held for job in mixing.jobs_of_round(1) for reply in Loop().train(job)]
    run(mixing), run(plain)
    close(mixing.server["model"], held + CoordinateMedian().combine(mixed(sent, 2), None), 1e-6)
    assert float((mixing.server["model"] - plain.server["model"]).sq()) > 1e-8


def test_krum_chooses_by_parameters_on_raw_inputs_with_batch_norm() -> None:
    """Clients whose inputs differ in size differ in running statistics, which are not what they have learned."""
    draw = np.random.default_rng(0)
    size = np.repeat([1.0, 30.0, 100.0, 300.0, 1000.0, 10.0], 40)
    x = (draw.normal(size=(240, 4)) * size[:, None] + size[:, None]).astype(np.float32)
    y = (x[:, 0] > size).astype(int)
    fed = Federation.from_arrays(x, y, "natural", groups=np.repeat(np.arange(6), 40))
    for seed in range(3):
        torch.manual_seed(seed)
        model = split(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), classifier="3")
        sent: list[list[Tree]] = []

        @dataclass(frozen=True)
        class Recorded(Krum):
            """Krum that keeps what it was given."""

            def combine(self, updates: Sequence[Tree], previous: Tree | None) -> Tree:
                sent.append(list(updates))  # noqa: B023  # called before the next seed
                return super().combine(updates, previous)

        settings = {"rounds": 1, "local": LOCAL, "aggregator": Recorded()}
        trained = make_simulation(fed, [model], METHODS["fedavg"](), **settings).using(Loop())
        start = trained.server["model"]
        run(trained)
        (updates,) = sent
        parameters = [update.params for update in updates]  # type: ignore[attr-defined]  # weights of a model
        chosen = parameters[int(krum_scores(squared_distances(inner_products(parameters)), 1).argmin())]
        close((trained.server["model"] - start).params, chosen, 1e-6)


def test_what_is_remembered_survives_resuming() -> None:
    kept: list[Snapshot] = []
    whole, again = (simulation(CenteredClipping(), rounds=3) for _ in range(2))
    run(whole, on_round=lambda now: kept.append(dataclasses.replace(now, clients=dict(now.clients))))
    run(again, resume=kept[0])
    assert "aggregator" in kept[0].server
    close(again.server, whole.server, 0)
    forgetful = simulation(CenteredClipping(), rounds=3)
    before = Tree({name: value for name, value in kept[0].server.items() if name != "aggregator"})
    run(forgetful, resume=dataclasses.replace(kept[0], server=before))
    assert float((forgetful.server["model"] - whole.server["model"]).sq()) > 0


def test_too_few_clients_are_refused_before_training() -> None:
    with pytest.raises(BadInput, match="krum needs at least 7 clients in a round, 6 take part"):
        simulation(Krum(2))
    with pytest.raises(BadInput, match="krum needs at least 5 clients in a round, 3 take part"):
        simulation(Krum(1), participation=0.5)
    with pytest.raises(BadInput, match=r"median needs at least 7 clients in a round, 6 take part.* lower .* mixing"):
        simulation(CoordinateMedian(mixing=3))


def test_too_few_replies_are_no_quorum() -> None:
    made = simulation(Krum(1))
    made.clients.holders = made.clients.holders[2:]  # two clients turn out to have no data
    with pytest.raises(FedheadError, match="round 1 has no quorum: 4 of 5 replies"):
        run(made)


def test_a_method_that_averages_by_itself_is_refused() -> None:
    @dataclass(frozen=True)
    class Own(Method):
        def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
            model = tree_mean([sent["model"] for sent in replies.sent], list(replies.samples))
            return server.replace(model=model)

    with pytest.raises(BadInput, match="median has no effect: Own takes no mean"):
        run(simulation(CoordinateMedian(), Own()))


def test_a_stage_with_its_own_rule_is_said() -> None:
    said: list[str] = []
    made = simulation(CoordinateMedian(), rounds=1)
    made.log = said.append  # type: ignore[method-assign]
    run(made, stages=[STAGES["ccvr"](samples=20, epochs=1), STAGES["finetune"]()])
    assert said == ["stage ccvr aggregates by its own rule: the aggregator median is for the rounds"]


def test_a_tensor_by_itself_is_combined_as_a_tree_is() -> None:
    @dataclass(frozen=True)
    class Scale(Method):
        def init_server(self, w: Weights, task: Task) -> Tree:
            return super().init_server(w, task).replace(scale=torch.tensor(10.0))

        def finish(self, w: Weights, client: Client) -> Reply:
            reply = super().finish(w, client)
            return reply._replace(send=reply.send.replace(scale=client.samples.clone()))

        def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
            return super().aggregate(server, replies, task).replace(scale=replies.mean("scale"))

    made = simulation(CoordinateMedian(), Scale(), rounds=1)
    sizes = sorted(len(rows) for rows in made.clients.federation.indices)
    run(made)
    assert float(made.server["scale"]) == (sizes[2] + sizes[3]) / 2
