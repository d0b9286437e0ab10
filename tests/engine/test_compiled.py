"""The traced step, as CUDA graphs replay it, against the plain one; all of it on the CPU."""

from __future__ import annotations

import pytest
import torch
from small import federation, network

from fedhead.engine.compiled import trace
from fedhead.engine.graphs import Graphs, Rig, blind
from fedhead.engine.job import Job
from fedhead.engine.local import local_round
from fedhead.engine.simulation import Simulation
from fedhead.engine.stack import Stack, VmapLift
from fedhead.engine.steps import Carry, Stretch, train_eagerly
from fedhead.method import METHODS
from fedhead.optim import SGD
from fedhead.types import Local


class Replayed(Graphs):
    """The rigs without a GPU: each bucket's step is traced once and called again and again."""

    def __call__(self, stretch: Stretch) -> Carry:
        stretch = blind(stretch)
        rig = Rig(self, stretch)
        rig.graphs = {size: _Traced(rig, size) for size in rig.sizes}  # type: ignore[misc]  # replay() is all it needs
        return rig.train(stretch)


class _Traced:
    def __init__(self, rig: Rig, size: int):
        function, self.arguments = rig._flat(size)
        self.graph = trace(function, self.arguments)

    def replay(self, count: int) -> None:
        for _ in range(count):
            self.graph(*self.arguments)


def prepared(name: str, norm: str) -> Job:
    """The second round of a few clients, longest first."""
    local = Local(epochs=2, batch_size=4, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=1e-3))
    simulation = Simulation(
        federation(), [network(norm, METHODS[name].head)], METHODS[name](), rounds=2, local=local, dtype=torch.float64
    )
    simulation.round(1, Stack())
    job = simulation.jobs(simulation.method, simulation.server, simulation.memory, simulation.holders, 2)[0]
    return job.take(sorted(range(len(job.clients)), key=lambda k: -len(job.rows[k])))


@pytest.mark.parametrize("norm", ["batch", pytest.param("group", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_replayed_steps_equal_plain_ones(name: str, norm: str) -> None:
    job = prepared(name, norm)
    plain, replayed = [
        local_round(job.program, job.sights(), job.stacked_tables(), VmapLift(), train)
        for train in (train_eagerly, Replayed())
    ]
    for mine, theirs in zip(replayed, plain, strict=True):
        assert mine.leaves().keys() == theirs.leaves().keys()
        for path, value in theirs.leaves().items():
            torch.testing.assert_close(mine.leaves()[path], value, atol=1e-11, rtol=1e-10)
