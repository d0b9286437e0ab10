"""Small sites on the in-process grid, and what a simulation of them ends with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Error, Message, RecordDict
from partial import Partial
from simulations import make_world
from small import federation, network

from fedhead.algorithm.task import LocalTraining
from fedhead.core.training.optimizers import SGD
from fedhead.core.tree.tree import Tree
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import train_round
from fedhead.flower.wire import wire
from fedhead.methods import METHODS
from fedhead.testing.inprocess import Fault, InProcessFederation

SETTINGS = {"rounds": 3, "local": LocalTraining(epochs=1, batch_size=4, optimizer=SGD(lr=0.05))}
Change = Callable[[dict[str, Any], dict[str, Any]], None]


def world(tmp_path: Path, method: str = "scaffold") -> InProcessFederation:
    return make_world(federation(), {"own": network("group")}, METHODS[method](), SETTINGS, tmp_path)


def during(kind: str, round: int, then: Fault) -> Fault:
    """A fault in one request of one round."""

    def fault(message: Message, honest: Callable[[], RecordDict]) -> RecordDict | Error | None:
        header, _ = wire.unpack(message.content)
        return then(message, honest) if (header["kind"], header["round"]) == (kind, round) else honest()

    return fault


def changed_response(content: RecordDict, change: Change) -> RecordDict:
    """Return a response with its header and trees changed."""
    header, trees = wire.unpack(content)
    change(header, trees)
    return wire.pack(header, trees)


def changed(change: Change) -> Fault:
    return lambda message, honest: changed_response(honest(), change)


def nan(header: dict[str, Any], trees: dict[str, Any]) -> None:
    trees["send"]["model"]["classifier.bias"][0] = float("nan")


def without(world: InProcessFederation, client: int, round: int) -> Tree:
    """The server's state of a simulation in which one client misses one round."""
    simulation = Partial(world.experiment, world.federation, Compute(device="cpu", executor="loop"))
    for number in range(1, 4):
        simulation.absent = {client} if number == round else set()
        train_round(simulation, number)
    return simulation.server


def whole(world: InProcessFederation) -> Tree:
    """The server's state of a simulation in which nobody misses anything."""
    return without(world, client=-1, round=0)


def same(a: Tree, b: Tree) -> None:
    for name, t in a.leaves().items():
        torch.testing.assert_close(t, b.leaves()[name], atol=1e-6, rtol=1e-6)
