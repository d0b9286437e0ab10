"""Replies that are added up as they arrive: the same numbers, bit for bit, and no more than a portion in memory."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import inflated, with_reply
from simulations import make_experiment, make_simulation
from small import federation, network

import fedhead as fh
from fedhead.algorithm.stage import Stage
from fedhead.algorithm.task import LocalTraining
from fedhead.engine.experiment.compute import Compute
from fedhead.engine.rounds.rounds import run_stage
from fedhead.engine.rounds.simulation import Simulation
from fedhead.engine.rounds.transport import Context, Received
from fedhead.methods.fedavg import FedAvg
from fedhead.metrics.records import StageResult

SETTINGS: dict[str, Any] = {"rounds": 0, "local": LocalTraining()}


@dataclass(frozen=True)
class KeptCCVR(fh.CCVR):
    adds_up = False


@dataclass(frozen=True)
class KeptRidge(fh.Ridge):
    adds_up = False


@dataclass(frozen=True)
class KeptQDA(fh.QDA):
    adds_up = False


class Watching(Simulation):
    """Notes who is asked together, and checks that no reply of an earlier portion is in memory any more."""

    hostile: int | None = None

    def __init__(self) -> None:
        experiment = make_experiment([network("group")], FedAvg(), **SETTINGS)
        super().__init__(experiment, federation(), Compute(device="cpu", executor="loop"))
        self.portion = 2
        self.asked: list[list[int]] = []
        self.sent: list[Any] = []

    def exchange(self, context: Context, cohort: list[int]) -> Received:
        gc.collect()
        assert not any(reference() is not None for reference in self.sent) or not context.algorithm.adds_up
        received = super().exchange(context, cohort)
        if self.hostile in received.replies:
            received = with_reply(
                received, self.hostile, inflated(received.replies[self.hostile], context.server, 0, [])
            )
        self.asked.append(list(cohort))
        self.sent += [weakref.ref(reply.send["statistics"]["sum"]) for reply in received.replies.values()]
        return received


def same(found: StageResult, expected: StageResult) -> None:
    one, two = found.server.leaves(), expected.server.leaves()
    assert one.keys() == two.keys()
    assert all(torch.equal(t, two[name]) for name, t in one.items())
    for entry in ("bytes_up", "participants", "accuracy", "personal"):
        assert found.metrics[entry] == expected.metrics[entry]


@pytest.mark.parametrize(
    ("stage", "kept"),
    [
        (fh.CCVR(samples=5, epochs=1), KeptCCVR(samples=5, epochs=1)),
        (fh.Ridge(), KeptRidge()),
        (fh.QDA(), KeptQDA()),
    ],
    ids=["ccvr", "ridge", "qda"],
)
def test_added_up_as_they_arrive_replies_give_the_same_bit_for_bit(stage: Stage, kept: Stage) -> None:
    expected = run_stage(make_simulation(federation(), [network("group")], FedAvg(), **SETTINGS), kept)
    simulation = Watching()
    found = run_stage(simulation, stage)
    same(found, expected)
    assert found.metrics["bytes_down"] == expected.metrics["bytes_down"]
    assert [len(asked) for asked in simulation.asked] == [2] * (len(simulation.clients.holders) // 2)


def test_a_client_unlike_the_others_is_not_in_the_sums() -> None:
    simulation, other = Watching(), Watching()
    simulation.hostile = other.hostile = 3
    found, expected = run_stage(simulation, fh.Ridge()), run_stage(other, KeptRidge())
    same(found, expected)
    assert list(found.metrics["failed"]) == ["3"]
    assert 3 not in [k for asked in simulation.asked[len(simulation.clients.holders) // 2 :] for k in asked]


def test_over_flower_replies_are_added_up_too(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from simulations import make_world

    def outcome(stage: Stage, portion: int | None) -> StageResult:
        world = make_world(federation(), {"own": network("group")}, FedAvg(), SETTINGS, tmp_path, stages=[stage])
        transport = world.transport(world.grid())
        transport.portion = portion
        transport.begin()
        return run_stage(transport, stage)

    same(outcome(fh.Ridge(), 2), outcome(fh.Ridge(), None))
