"""Refusal of hooks' results that are not trees: the hook's name, and what to return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulations import make_simulation, run
from small import federation, network

from fedhead.algorithm.client import Client
from fedhead.algorithm.phase import Replies
from fedhead.algorithm.task import LocalTraining, Task
from fedhead.core.system.errors import BadInput
from fedhead.core.tree.tree import Tree, Weights
from fedhead.executors.client.base import Executor
from fedhead.executors.loop import Loop
from fedhead.executors.stack.stack import Stack
from fedhead.methods.fedavg import FedAvg
from fedhead.methods.local_only import LocalOnly


def with_hook(name: str, result: Any) -> FedAvg:
    """A method of which one hook returns something else."""
    made: FedAvg = type("Mine", (FedAvg,), {name: lambda self, *args: result})()
    return made


@pytest.mark.parametrize("executor", [Loop(), Stack()], ids=["loop", "stack"])
@pytest.mark.parametrize("hook", ["init_server", "init_client", "per_client", "aggregate"])
@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "a NoneType: return fh.Tree"),
        ({"a": torch.zeros(1)}, "a dict: return fh.Tree"),
        (Tree(a=Tree(b=3)), "an int under 'a/b': a tree holds tensors"),
    ],
    ids=["None", "dict", "int"],
)
def test_a_hook_that_returns_no_tree_is_named(hook: str, result: Any, said: str, executor: Executor) -> None:
    with pytest.raises(BadInput, match=f"Mine.{hook} returned {said}"):
        run(
            make_simulation(federation(), [network()], with_hook(hook, result), rounds=1, local=LocalTraining()).using(
                executor
            )
        )


@pytest.mark.parametrize("executor", [Loop(), Stack()], ids=["loop", "stack"])
def test_a_gradient_that_is_forgotten_is_named(executor: Executor) -> None:
    made = make_simulation(federation(), [network()], with_hook("correct", None), rounds=1, local=LocalTraining())
    with pytest.raises(BadInput, match=r"Mine.correct returned a NoneType: return the gradient"):
        run(made.using(executor))


def test_a_plain_tree_in_place_of_weights_is_named() -> None:
    made = with_hook("aggregate", Tree(model=Tree(w=torch.zeros(1))))
    with pytest.raises(BadInput, match=r"Mine.aggregate returned a Tree under 'model'.*server\['model'\].replace"):
        run(make_simulation(federation(), [network()], made, rounds=1, local=LocalTraining()))


@pytest.mark.parametrize("executor", [Loop(), Stack()], ids=["loop", "stack"])
def test_a_server_state_without_the_model_is_named(executor: Executor) -> None:
    made = make_simulation(
        federation(), [network()], with_hook("aggregate", Tree(c=torch.zeros(1))), rounds=2, local=LocalTraining()
    )
    said = r"Mine.aggregate returned a server state without 'model'.*it has 'c': return server.replace"
    with pytest.raises(BadInput, match=said):
        run(made.using(executor))


def test_a_server_state_may_lack_what_no_client_receives() -> None:
    class Alone(LocalOnly):
        def init_server(self, w: Weights, task: Task) -> Tree:
            return Tree(seen=torch.zeros(1))

        def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
            return Tree()

    made = make_simulation(federation(), [network()], Alone(), rounds=2, local=LocalTraining())
    run(made)
    assert not made.server


class Renamed(FedAvg):
    """The server's model has another name."""

    broadcast = ("weights",)

    def init_server(self, w: Weights, task: Task) -> Tree:
        return Tree(weights=w)


class StartsRenamed(Renamed):
    def start(self, client: Client) -> Weights:
        model: Weights = client.received["weights"]
        return model


class AveragesRenamed(StartsRenamed):
    def aggregate(self, server: Tree, replies: Replies, task: Task) -> Tree:
        return Tree(weights=server["weights"].replace(replies.mean("model")))


class AllRenamed(AveragesRenamed):
    def global_model(self, server: Tree, task: Task) -> Weights:
        model: Weights = server["weights"]
        return model


@pytest.mark.parametrize("executor", [Loop(), Stack()], ids=["loop", "stack"])
@pytest.mark.parametrize(
    ("method", "hook"), [(Renamed, "start"), (StartsRenamed, "aggregate"), (AveragesRenamed, "global_model")]
)
def test_a_default_hook_that_lacks_the_model_is_named(method: type[FedAvg], hook: str, executor: Executor) -> None:
    said = rf"{method.__name__}: .* has no 'model', which the default {hook} needs; it has 'weights': .*or write {hook}"
    with pytest.raises(BadInput, match=said):
        run(make_simulation(federation(), [network()], method(), rounds=1, local=LocalTraining()).using(executor))


def test_a_method_may_name_its_model_as_it_likes() -> None:
    found, expected = (
        run(make_simulation(federation(), [network()], method, rounds=2, local=LocalTraining()))
        for method in (AllRenamed(), FedAvg())
    )
    assert found.rows[-1]["test_loss"] == expected.rows[-1]["test_loss"]
